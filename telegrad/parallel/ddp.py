"""`DistributedDataParallel`: one module on every rank, each with its own part of the batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, final

import numpy as np

from telegrad.arrays import device_of, host_copy, shared_below, shared_empty
from telegrad.autograd import Completion, Tensor, is_grad_enabled, once
from telegrad.collectives import (
    ProcessGroup,
    ReduceOp,
    all_gather,
    all_gather_object,
    all_reduce,
    broadcast,
    world_group,
)
from telegrad.collectives.seams import branching
from telegrad.errors import CollectiveMismatchError, InvalidUseError
from telegrad.kernels import flatten, unflatten
from telegrad.nn import Embedding, Module
from telegrad.parallel.bucket import Slot, assign_buckets
from telegrad.parallel.hooks import CommHook
from telegrad.parallel.join import UNEVEN, Turn, Turns
from telegrad.parallel.reducer import Gathered, Reducer, Trained, first_change
from telegrad.rpc import expose
from telegrad.rpc.seams import refuse_to_block
from telegrad.types import Array, Rank

# -- the check that all ranks have the same module -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter or buffer of a module.

    Attributes:
        kind: `parameter` or `buffer`.
        name: The dotted name, as in `state_dict()`.
        shape: The shape of its array.
        dtype: The name of its dtype.
        requires_grad: True if it is trained.
        sparse: True if it is the table of an `Embedding(sparse=True)`.
        values: A digest of its array; empty if the ranks have the same array.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    sparse: bool = False
    values: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """One rank's description of its module."""

    entries: tuple[Entry, ...]
    bucket_bytes: int
    broadcast_buffers: bool


def describe(
    module: Module,
    bucket_bytes: int,
    *,
    broadcast_buffers: bool = True,
    same: Collection[int] | None = None,
) -> Description:
    """Returns the description of this rank's module and of the options of its wrapper.

    Args:
        module: The module.
        bucket_bytes: The option.
        broadcast_buffers: The option.
        same: The ids of the parameters whose arrays are the same on every rank; those of others are
            described too. None for all.
    """
    sparse = sparse_parameters(module)
    entries = [
        _entry("parameter", name, x, id(x) in sparse, same is not None and id(x) not in same)
        for name, x in module.named_parameters()
    ]
    entries += [_entry("buffer", name, x) for name, x in module.named_buffers()]
    return Description(tuple(entries), bucket_bytes, broadcast_buffers)


def sparse_parameters(module: Module) -> set[int]:
    """Returns the ids of the tables of which a backward yields only the used rows."""
    tables = [each for each in module.modules() if isinstance(each, Embedding) and each.sparse]
    return {id(table.weight) for table in tables}


def _entry(
    kind: str, name: str, value: Tensor, sparse: bool = False, with_values: bool = False
) -> Entry:
    values = blake2b(host_copy(value.data).tobytes(), digest_size=8) if with_values else None
    facts = value.shape, str(value.dtype), value.requires_grad, sparse
    return Entry(kind, name, *facts, values.hexdigest() if values else "")


def first_difference(descriptions: Sequence[Description], ranks: Sequence[Rank]) -> str | None:
    """Returns the first difference of any rank from the first one, in words; None without one.

    Args:
        descriptions: The descriptions by rank in the group; so every member finds the same
            difference.
        ranks: The rank numbers to use in the text.

    >>> weight = Entry("parameter", "weight", (2, 3), "float32", True)
    >>> other = Entry("parameter", "weight", (2, 4), "float32", True)
    >>> first_difference([Description((x,), 8, True) for x in (weight, other)], [0, 1])
    "parameter 'weight' has shape (2, 3) on rank 0 and (2, 4) on rank 1"
    """
    first = descriptions[0]
    for r, other in zip(ranks[1:], descriptions[1:], strict=True):
        if other != first:
            return _difference(first, other, ranks[0], r)
    return None


def _difference(left: Description, right: Description, r: Rank, other: Rank) -> str:
    for i, (a, b) in enumerate(zip_longest(left.entries, right.entries)):
        if a is None or b is None:
            found, with_it, without = (b, other, r) if a is None else (a, r, other)
            return f"{found.kind} {found.name!r} is on rank {with_it} and not on rank {without}"
        if (a.kind, a.name) != (b.kind, b.name):
            return (
                f"number {i} is {a.kind} {a.name!r} on rank {r} and {b.kind} {b.name!r} on rank "
                f"{other}"
            )
        for what in ("shape", "dtype", "requires_grad", "sparse", "values"):
            x, y = getattr(a, what), getattr(b, what)
            if x != y:
                return f"{a.kind} {a.name!r} has {what} {x} on rank {r} and {y} on rank {other}"
    name = "bucket_bytes" if left.bucket_bytes != right.bucket_bytes else "broadcast_buffers"
    return f"{name} is {getattr(left, name)} on rank {r} and {getattr(right, name)} on rank {other}"


@final
class Replica:
    """The module of one rank, in which parameters may be added, replaced, removed or unfrozen.

    Args:
        module: The module.
        bucket_bytes: The option of the wrapper.
        broadcast_buffers: The option of the wrapper.
        ranks: The ranks of the group.
    """

    def __init__(
        self, module: Module, bucket_bytes: int, broadcast_buffers: bool, ranks: Sequence[Rank]
    ) -> None:
        self._module = module
        self._options = bucket_bytes, broadcast_buffers
        self._ranks = ranks
        self._same: dict[int, Tensor] = {}  # those whose arrays the ranks have in common, by id
        self._buffers: dict[str, object] = {}
        self._trained: dict[str, Trained] = {}

    def trained(self) -> list[Trained]:
        """Returns the parameters that need a gradient now; an unchanged one as the same object."""
        sparse = sparse_parameters(self._module)
        self._trained = {
            name: self._as_before(name, each, id(each) in sparse)
            for name, each in self._module.named_parameters()
            if each.requires_grad
        }
        return list(self._trained.values())

    def _as_before(self, name: str, parameter: Tensor, sparse: bool) -> Trained:
        known = self._trained.get(name)
        if known is not None and known.parameter is parameter:
            slot = known.slot
            facts = slot.shape, slot.dtype, slot.sparse
            if facts == (parameter.shape, parameter.dtype, sparse):
                return known
        return Trained(name, parameter, Slot(parameter.shape, parameter.dtype, sparse))

    def parameters(self) -> dict[str, Tensor]:
        """Returns all parameters by name."""
        return dict(self._module.named_parameters())

    def added(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns those of some parameters whose arrays may differ between the ranks."""
        return {name: each for name, each in parameters.items() if id(each) not in self._same}

    def change_of_buffers(self) -> str | None:
        """Returns the first change of the buffers since the last call, in words."""
        before = self._buffers
        self._buffers = {name: (x.shape, x.dtype) for name, x in self._module.named_buffers()}
        return first_change("buffer", before, self._buffers)

    def now_the_same(self) -> None:
        """Records that all ranks have the same parameters."""
        self._same = {id(each): each for each in self._module.parameters()}

    def describe(self) -> Description:
        """Returns this rank's description."""
        limit, broadcast_buffers = self._options
        same = self._same or None  # at construction all arrays are taken from the first rank
        return describe(self._module, limit, broadcast_buffers=broadcast_buffers, same=same)

    def described(self) -> Array:
        """Returns the description as bytes."""
        return np.frombuffer(json.dumps(asdict(self.describe())).encode(), np.uint8)

    def check(self, found: Sequence[Array]) -> None:
        """Raises CollectiveMismatchError if the descriptions of the ranks differ."""
        self.compare([_description(json.loads(each.tobytes())) for each in found])
        self.now_the_same()

    def compare(self, descriptions: Sequence[Description]) -> None:
        """Raises CollectiveMismatchError with the first difference."""
        difference = first_difference(descriptions, self._ranks)
        if difference is not None:
            raise CollectiveMismatchError(
                f"DistributedDataParallel needs the same module on every rank, but {difference}"
            )


def _description(plain: dict[str, Any]) -> Description:
    entries = [Entry(**{**each, "shape": tuple(each["shape"])}) for each in plain["entries"]]
    return Description(tuple(entries), plain["bucket_bytes"], plain["broadcast_buffers"])


# -- the wrapper ---------------------------------------------------------------------------------

# Large enough that bandwidth, not latency, decides the time of a reduction. Small enough that a
# model of a few hundred megabytes has several: the first is reduced while backward goes on.
BUCKET_BYTES = 25 * 2**20


@expose
@final
class DistributedDataParallel(Module):
    """A wrapper for a module of which every rank keeps an identical copy.

    Each rank computes on its own part of the batch. A backward leaves the means of the gradients
    over all ranks, bitwise equal on each. With parts of equal size and a loss that is a mean, they
    are the gradients of the whole batch. They are in the usual place: in `parameter.grad` after
    `loss.backward()`, in the context after `dist_autograd.backward`.

        rank 0   images[0::2] ─ module ─ loss ─ backward ─┐  mean of   ┌─ optimizer.step
        rank 1   images[1::2] ─ module ─ loss ─ backward ─┘ gradients └─ optimizer.step

    Construction checks that parameters and buffers are the same everywhere, by name, shape, dtype
    and `requires_grad`, and takes their values from the first rank of the group. Every rank must
    run the same number of backwards. The parameters that a backward reaches may differ: a rank
    without a gradient for a parameter contributes zeros. If no rank has a gradient for a parameter,
    its gradient is left as it is.

    If the module has buffers, every rank takes them from the first rank before each forward, so
    that the running statistics of BatchNorm do not drift apart. That applies in training mode,
    while gradients are recorded, outside `no_sync()`; every rank must run the same number of such
    forwards. `forward` then returns only once every rank has called it.

    Parameters may be unfrozen, frozen, replaced, added or removed later, by all ranks between the
    same two backwards. The next backward averages the gradients of those that need one then. It
    raises on every rank, with the name, if the ranks' modules differ. A forward in training mode
    takes the values of new parameters from the first rank, as those of buffers; without one, they
    must be the same on every rank. Add new parameters to the optimizer, too. Call the wrapper: a
    call of `module` itself does not see that all parameters were replaced.

    The gradient of an `nn.Embedding(sparse=True)` stays a RowSparse: the ranks exchange only the
    rows that they used. All other gradients are averaged as arrays.

    If anything fails during a backward, a rule here or another rank, every rank raises, and the
    gradients of all parameters are None afterwards: never are some averaged and some not. The
    process group and this wrapper cannot be used after that: wrap the module again, with a new
    group. Only `create_graph=True`, a mistake that all ranks make together, is refused before
    anything is started, and everything can be used further.

    Args:
        module: A module with at least one parameter that needs a gradient; all on one device.
        process_group: The group whose ranks have a copy; None for all ranks of the job.
        bucket_bytes: The bytes that are reduced at once; gradients of one dtype share buckets.
        broadcast_buffers: False to leave buffers to each rank after construction.

    Raises:
        TypeError: `module` is no Module, or `broadcast_buffers` is no bool.
        ValueError: No parameter needs a gradient, they are on several devices, or `bucket_bytes`
            is not positive.
        CollectiveMismatchError: The ranks' modules differ; raised on every rank with the
            difference.
        NotInitializedError: There is no process group.
        WorkerLostError: A rank is lost.

    Attributes:
        module: The wrapped module. `parameters()`, `state_dict()` and the like are its own: names
            have no prefix, so a state saved with the wrapper can be loaded without it.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, nn, parallel
        >>> from telegrad.testing import Cluster
        >>> def step() -> float:  # runs on every worker
        ...     rank = collectives.init_process_group().rank
        ...     model = parallel.DistributedDataParallel(nn.Linear(1, 1))
        ...     model(np.full((4, 1), float(rank), np.float32)).mean().backward()
        ...     return model.module.weight.grad.item()  # the mean of 0 and 1
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0.5, 0.5]
    """

    module: Module

    def __init__(
        self,
        module: Module,
        *,
        process_group: ProcessGroup | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        _check(module, bucket_bytes, broadcast_buffers)
        object.__setattr__(self, "module", module)  # not a child: see `_walk`
        group = _Group(world_group() if process_group is None else process_group)
        self._replica = Replica(module, bucket_bytes, broadcast_buffers, group.ranks)
        self._replica.compare(group.all_of(self._replica.describe()))
        state = [*module.parameters(), *module.buffers()]
        group.copy_from(0, state, bucket_bytes, "construction")
        self._replica.now_the_same()
        self._replica.change_of_buffers()
        self._reducer = Reducer(self._replica, bucket_bytes, group)
        self._group = group
        self._bucket_bytes = bucket_bytes
        self._broadcast_buffers = broadcast_buffers
        self._forwards = 0  # those that shared buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the module's forward, computed with the first rank's buffers.

        Raises:
            AutogradError: An earlier backward failed, if buffers or new parameters are shared.
            CollectiveMismatchError: A rank did something else than a forward that shares the same
                buffers and new parameters.
            WorkerLostError: A rank is lost.
            BlockingCallError: It would wait for the other ranks on a loop that telegrad runs.
        """
        if is_grad_enabled():
            once(self._begin_forward)
        return self.module(*args, **kwargs)

    def _begin_forward(self) -> None:
        """Watches the present parameters, and shares what a pass over all ranks needs."""
        parameters = self._replica.parameters()
        self._reducer.watch(parameters.values())
        if self.training and self._reducer.synchronised and self._group.size > 1:
            self._share(self._replica.added(parameters))

    def _share(self, added: Mapping[str, Tensor]) -> None:
        """Takes the first rank's buffers and new parameters; a synchronised pass follows."""
        if not (added or self._shared_buffers()):
            return
        refuse_to_block(
            "the forward of DistributedDataParallel, which takes the first rank's buffers and new "
            "parameters,",
            "in an async def function write `await rpc.to_thread(model, inputs)`, or pass "
            "broadcast_buffers=False",
        )
        self._reducer.check_usable()
        turns = self._reducer.turns
        source = 0 if turns is None else turns.take(Turn.FORWARD).active[0]
        self._take_shared(source, added, UNEVEN if turns is None else "")

    def _shared_buffers(self) -> list[Tensor]:
        return list(self.module.buffers()) if self._broadcast_buffers else []

    def _take_shared(self, source: int, added: Mapping[str, Tensor], advice: str = "") -> None:
        self._forwards += 1
        buffers = self._shared_buffers()
        what = [f"forward {self._forwards}"]
        what += [f"parameter {name!r} was added" for name in list(added)[:1]]
        what += filter(None, [self._replica.change_of_buffers() if buffers else None])
        tensors = [*added.values(), *buffers]
        self._group.copy_from(source, tensors, self._bucket_bytes, ", ".join(what), advice)
        if added:
            self._replica.now_the_same()

    def no_sync(self) -> AbstractContextManager[None]:
        """Returns a context manager in which backwards add up this rank's own gradients.

        The next backward outside averages the sum. The place of the backward call counts, and every
        rank must do the same in the same order.

            with model.no_sync():
                loss(first_half).backward()
            loss(second_half).backward()
        """
        return self._reducer.no_sync()

    @contextmanager
    def join(
        self, *, divide_by_initial_world_size: bool = True, enable: bool = True
    ) -> Iterator[None]:
        """Returns a context manager in which ranks may have different numbers of inputs.

        A rank that reaches the end of the block waits there until all ranks have. Until then it
        takes part in the operations of the others: with the buffers of the first rank that has
        inputs, and without gradients. At the end every rank has the parameters and buffers of the
        lowest rank of those that had inputs longest. Optimizers keep their own state.

        For each input, every rank runs the same forwards and backwards. Other operations of the
        group are not shadowed; do not call them inside the block. If the block raises on one rank,
        the group is over and the other ranks raise, too.

            with model.join():
                for images, labels in own_part:
                    optimizer.zero_grad()
                    loss(model(images), labels).backward()
                    optimizer.step()

        Args:
            divide_by_initial_world_size: True to divide sums of gradients by the number of all
                ranks, so that each input has the same weight in all steps. False to divide by the
                number of ranks that still have inputs.
            enable: False for a block that does nothing.

        Raises:
            InvalidUseError: This module is in such a block already.
            CollectiveMismatchError: A rank runs something else than the others, or passed other
                arguments.
            WorkerLostError: A rank is lost.
            BlockingCallError: It was called on a loop that telegrad runs.

        Example:
            >>> import numpy as np
            >>> from telegrad import collectives, nn, optim, parallel
            >>> from telegrad.testing import Cluster
            >>> def train() -> float:  # runs on every worker
            ...     rank = collectives.init_process_group().rank
            ...     model = parallel.DistributedDataParallel(nn.Linear(1, 1))
            ...     optimizer = optim.SGD(model.parameters(), lr=0.1)
            ...     with model.join():
            ...         for _ in range(1 + 2 * rank):  # rank 1 has more inputs
            ...             optimizer.zero_grad()
            ...             model(np.ones((4, 1), np.float32)).mean().backward()
            ...             optimizer.step()
            ...     return model.module.weight.data.item()
            >>> with Cluster(2) as cluster:
            ...     one, other = cluster.run(train)
            >>> one == other
            True
        """
        if not enable:
            yield
            return
        if self._reducer.turns is not None:
            raise InvalidUseError("this DistributedDataParallel is inside a join() block already")
        refuse_to_block("the end of join()", "train in a thread: `await rpc.to_thread(train)`")
        turns = Turns(self._group, keep_divisor=divide_by_initial_world_size)
        self._reducer.turns = turns
        try:
            yield
            self._shadow(turns)
        except BaseException as error:
            if self._group.size > 1:
                self._group.abort(error)  # the other ranks wait for this one's turn
            raise
        finally:
            self._reducer.turns = None

    def _shadow(self, turns: Turns) -> None:
        """Takes part in what ranks with inputs do, until there are none; then takes their model."""
        self._reducer.check_usable()
        while (roll := turns.take(Turn.OUT)).active:
            if roll.turn is Turn.FORWARD:
                added = self._replica.added(self._replica.parameters())
                self._take_shared(roll.active[0], added)
            else:
                self._reducer.shadow()
        state = [*self.module.parameters(), *self.module.buffers()]
        self._group.copy_from(turns.last[0], state, self._bucket_bytes, "join, last model")
        self._replica.now_the_same()

    def register_comm_hook(self, state: object, hook: CommHook) -> None:
        """Averages the buckets of further backwards by `hook(state, bucket)`, to compress them.

        Every rank registers the same hook before its first backward. The hook is called as soon as
        the bucket is filled, in the thread that computes, and must not wait. It returns a Future
        of the average: an array in the shape and dtype of `bucket.buffer`, the same on every rank.
        Callbacks (`work.then`) may start further operations, the same for a bucket on every rank.
        If the hook or its Future raises on any rank, backward fails on every rank. The gradients
        of `nn.Embedding(sparse=True)` are averaged without the hook.

            model.register_comm_hook(None, parallel.float16_compress_hook)

        Args:
            state: The first argument of each call.
            hook: The function.

        Raises:
            TypeError: `hook` cannot be called.
            InvalidUseError: There is a hook already, or a backward has been averaged.
        """
        if not callable(hook):
            raise TypeError(
                f"a communication hook is a function of a state and a bucket, not {hook!r}"
            )
        if self._reducer.hook is not None:
            raise InvalidUseError(
                "this DistributedDataParallel has a communication hook already; wrap the module "
                "again to use another one"
            )
        if self._reducer.passes:
            raise InvalidUseError(
                f"this DistributedDataParallel has averaged {self._reducer.passes} backwards; "
                "register the communication hook before the first one, on every rank"
            )
        self._reducer.hook = partial(hook, state)

    @property
    def training(self) -> bool:
        """True if the module is in training mode."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        self.module.train(mode)

    def _walk(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        yield from self.module._walk(prefix, seen)

    def _named_state(
        self, prefix: str = "", above: tuple[Module, ...] = ()
    ) -> Iterator[tuple[str, Tensor]]:
        yield from self.module._named_state(prefix, above)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yields the modules directly inside the wrapped one."""
        yield from self.module.named_children()

    def __repr__(self) -> str:
        inside = repr(self.module).replace("\n", "\n  ")
        return f"DistributedDataParallel(\n  (module): {inside}\n)"


@final
class _Group:
    """The view of a process group that a reducer needs."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        # A name for this wrapper, the same on every rank: each has called as many operations.
        members, epoch = group.key
        self._name = f"{members}:{epoch}:{group.statistics().operations}"

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def ranks(self) -> Sequence[Rank]:
        return self._group.ranks

    @property
    def process_group(self) -> ProcessGroup:
        return self._group

    def start(self, array: Array, label: str) -> Completion:
        return all_reduce(array, ReduceOp.AVG, self._group, async_op=True, label=label)

    def gather(self, array: Array, label: str) -> Gathered:
        return all_gather(array, group=self._group, async_op=True, label=label)

    def memory(self, nbytes: int) -> Array:
        if not self._group.sharing.in_place:
            return np.empty(nbytes, np.uint8)
        try:
            buffer = shared_empty(nbytes, np.uint8)
        except OSError:  # no descriptor is left
            return np.empty(nbytes, np.uint8)
        memory = shared_below(buffer)
        assert memory is not None
        memory.copied = True  # the bucket is used again when no array here lies in it
        return buffer

    def branch(self, b: int) -> AbstractContextManager[None]:
        return branching(f"{self._name}:{b}", f"bucket {b}")

    def blocking(self) -> AbstractContextManager[None]:
        return self._group.cross_waits.blocking(self._group)

    def abort(self, cause: BaseException) -> None:
        self._group.abort(cause)

    def submit(self, func: Callable[..., object], *args: Any) -> None:
        self._group.submit(func, *args)

    def all_of(self, own: Description) -> list[Description]:
        return all_gather_object(own, group=self._group)

    def copy_from(
        self, r: int, tensors: list[Tensor], bucket_bytes: int, what: str, advice: str = ""
    ) -> None:
        """Replaces the arrays by those of rank `r` of the group, in few messages.

        Arrays of one dtype share buckets. `what` names the occasion in errors, `advice` ends them.
        """
        started = []
        for b, bucket in enumerate(assign_buckets(_slots(tensors), bucket_bytes)):
            members = [tensors[i] for i in bucket.members]
            buffer = flatten([member.data for member in members])
            label = f"DistributedDataParallel {what}, bucket {b}{advice}"
            src = self._group.ranks[r]
            work = broadcast(buffer, src, self._group, async_op=True, label=label)
            started.append((members, buffer, work))
        for members, buffer, work in started:
            work.wait()
            if r != self._group.rank:
                arrays = unflatten(buffer, [member.shape for member in members])
                for member, array in zip(members, arrays, strict=True):
                    member.data = array


def _check(module: object, bucket_bytes: object, broadcast_buffers: object) -> None:
    if not isinstance(module, Module):
        raise TypeError(
            f"DistributedDataParallel wraps a Module of this process, not {type(module).__name__}"
        )
    if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes <= 0:
        raise ValueError(f"bucket_bytes must be a positive number of bytes, not {bucket_bytes!r}")
    if not isinstance(broadcast_buffers, bool):
        raise TypeError(f"broadcast_buffers must be True or False, not {broadcast_buffers!r}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            f"no parameter of {type(module).__name__} needs a gradient, so there is nothing to "
            "average; use the module itself"
        )
    devices = {device_of(x.data) for x in (*module.parameters(), *module.buffers())}
    if len(devices) > 1:
        raise ValueError(
            f"the parameters and buffers of {type(module).__name__} are on several devices "
            f"({', '.join(sorted(devices))}); move them to one, and run one rank per device"
        )


def _slots(tensors: list[Any]) -> list[Slot]:
    return [Slot(x.shape, x.dtype) for x in tensors]
