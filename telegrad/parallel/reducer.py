"""The reducer: averages gradients over ranks while backward still computes others.

    backward    leaf 5   leaf 4   leaf 3   leaf 2   leaf 1   leaf 0    end of the pass
    hooks         └───┬────┘        └───┬────┘        └───┬────┘             │
    buckets       0: filled         1: filled         2: filled              │ zeros for leaves
    reductions    0 ═══════════     1 ════════════    2 ══════════════════   ▼ without a gradient
    gradients                                                    all replaced at once, or none

Buckets are reduced in the same order on every rank: a bucket that is filled early waits for those
before it. A bucket's buffer ends with one item per parameter, which is 1 if this rank has a
gradient. If no rank has a gradient for a parameter, its gradient is left as it is, as on a single
process.

If there is a hook, it gets the gradients of each bucket alone, and the items that tell who has a
gradient are gathered at the end of the pass. A last operation says that no rank's hook has failed.

A parameter whose gradient is row-sparse has a bucket alone: its rows are gathered, not reduced.

The averaged gradients are views of the buffer, which is used again when all of them are gone.
With the first pass the ranks exchange the order in which gradients were complete. Further passes
fill their buckets in the order of the first rank.

A model may change between two passes. Each pass asks for the parameters that are trained now. After
a change the buckets are made anew, and the pass starts none of them before it has gathered what all
ranks now have. That operation is named after the change. A rank without a change starts a bucket
instead, so every rank gets an error with that name: the rank with the change starts nothing else.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, final

import numpy as np

from telegrad.arrays import current_place, is_array, namespace, to_host, views_of, working_in
from telegrad.autograd import (
    Accumulate,
    Completion,
    GradientTarget,
    PassEnd,
    RemovableHandle,
    Tensor,
    is_grad_enabled,
    is_row_sparse,
)
from telegrad.autograd.seams import post_accumulate_hooks
from telegrad.collectives import ProcessGroup, Work
from telegrad.critical import critical
from telegrad.errors import AutogradError
from telegrad.parallel.bucket import Bucket, Buffers, Slot, assign_buckets, completed_order
from telegrad.parallel.hooks import GradientBucket
from telegrad.parallel.join import UNEVEN, Turn, Turns
from telegrad.parallel.sparse_rows import mean_of_rows, pack_rows
from telegrad.rpc import Future
from telegrad.rpc.seams import new_future, refuse_to_block
from telegrad.types import Array

_OVER = "the backward pass that this gradient belongs to is over"


class Gathered(Completion, Protocol):
    """The arrays of all ranks, by rank, when they are there."""

    def wait(self) -> list[Array]:
        """Blocks until the arrays are there and returns them."""


class ReducingGroup(Protocol):
    """The functions of a process group that a reducer needs; none of them waits."""

    @property
    def size(self) -> int:
        """The number of ranks in the group."""

    @property
    def process_group(self) -> ProcessGroup:
        """The group itself, for hooks."""

    def start(self, array: Array, label: str) -> Completion:
        """Starts to replace `array` by its mean over all ranks.

        Args:
            array: The array; the caller must not touch it until the mean is there.
            label: The name of the operation in errors, on every rank.
        """

    def gather(self, array: Array, label: str) -> Gathered:
        """Starts to send `array` to every rank; the result has the arrays of all ranks.

        The arrays have the same dtype and any shapes.
        """

    def memory(self, nbytes: int) -> Array:
        """Returns new bytes on the host, where all ranks can read them if they share memory."""

    def branch(self, b: int) -> AbstractContextManager[None]:
        """Returns the context manager in which the hook of bucket `b` is called."""

    def blocking(self) -> AbstractContextManager[None]:
        """Returns the context manager in which a thread waits for what it has started."""

    def abort(self, cause: BaseException) -> None:
        """Fails what is not over on this rank, and all later operations, with `cause`."""

    def submit(self, func: Callable[..., object], *args: Any) -> None:
        """Runs `func(*args)` in a pool."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A leaf that needs a gradient, with its name and what it takes in a bucket."""

    name: str
    parameter: Tensor
    slot: Slot


class ReducedModel(Protocol):
    """The parameters whose gradients a reducer averages; they may change between two passes."""

    def trained(self) -> list[Trained]:
        """Returns the parameters that need a gradient now, in the same order on every rank.

        An object that was returned before stands for an unchanged parameter.
        """

    def described(self) -> Array:
        """Returns a description of the model as bytes, for `check` on every rank."""

    def check(self, found: Sequence[Array]) -> None:
        """Raises CollectiveMismatchError if the ranks, which `described` their models, differ."""


def first_change(
    kind: str,
    before: Mapping[str, object],
    now: Mapping[str, object],
    words: tuple[str, str] = ("was added", "was removed"),
) -> str | None:
    """Returns the first change of named things, in words; None without one.

    Args:
        kind: The noun for each.
        before: By name, a value that stays equal as long as nothing has changed.
        now: The same of the present moment.
        words: The verbs for one that was added and for one that was removed.

    >>> first_change("buffer", {"mean": 1, "scale": 2}, {"mean": 1, "scale": 3})
    "buffer 'scale' was replaced"
    """
    if before == now:
        return None
    for name, each in now.items():
        if name not in before:
            return f"{kind} {name!r} {words[0]}"
        if before[name] != each:
            return f"{kind} {name!r} was replaced"
    gone = next((name for name in before if name not in now), None)
    return f"{kind} {gone!r} {words[1]}" if gone is not None else None


@final
class Reducer:
    """Keeps the gradients of a model's parameters the same on every rank of a group.

    Args:
        model: The model, which has a parameter that needs a gradient.
        limit: The most bytes of a bucket.
        group: The group that averages over the ranks.

    Attributes:
        parameters: The parameters of the last pass, or of construction.
        change: A change of the parameters that the ranks have not compared yet, in words.
        buckets: The parameters that are reduced together, as indices.
        passes: The number of backward passes that were, or are being, averaged.
        synchronised: False inside `no_sync()`.
        hook: The function that averages a bucket; None for an `all_reduce`.
        buffers: The buffers of passes whose gradients are gone.
        turns: The turns of the `join()` block that is open; None outside of one.
    """

    def __init__(self, model: ReducedModel, limit: int, group: ReducingGroup) -> None:
        self.group = group
        self.buffers = Buffers(group.memory)
        self.passes = 0
        self.synchronised = True
        self.hook: Callable[[GradientBucket], Any] | None = None
        self.turns: Turns | None = None
        self.change: str | None = None
        self._model = model
        self._limit = limit
        self._lock = threading.Lock()  # guards _active, _broken and _hooks
        self._active: tuple[GradientTarget, Reduction] | None = None
        self._broken: str | None = None
        self._hooks: dict[Tensor, ReducerHook] = {}
        self._take(model.trained())

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Registers hooks on parameters that were added or unfrozen; a forward calls it.

        Without it, a backward that reaches none of the earlier ones would go unnoticed.
        """
        fresh = [each for each in parameters if each.requires_grad and each not in self._hooks]
        if fresh:
            with critical.section, self._lock:
                self._register_hooks(fresh)

    def _register_hooks(self, parameters: Iterable[Tensor]) -> None:
        for each in parameters:
            if each not in self._hooks:
                self._hooks[each] = ReducerHook(self, each)

    def _take(self, found: Sequence[Trained]) -> None:
        """Makes the buckets for the parameters that are trained now; no pass is under way."""
        self._trained = found
        self.parameters = tuple([each.parameter for each in found])
        self._index = {parameter: i for i, parameter in enumerate(self.parameters)}
        self._slots = [each.slot for each in found]
        self.buckets = assign_buckets(self._slots, self._limit)
        self.order_known = len(self.buckets) == 1  # of one bucket, the order does not matter
        self.buffers.clear()
        for parameter in self._hooks.keys() - self._index.keys():
            self._hooks.pop(parameter).remove()
        self._register_hooks(self.parameters)

    def _take_change(self, found: Sequence[Trained]) -> None:
        if [*map(id, found)] == [*map(id, self._trained)]:
            return
        before, now = (
            {each.name: (id(each.parameter), each.slot) for each in some}
            for some in (self._trained, found)
        )
        words = "was added or unfrozen", "was removed or frozen"
        change = first_change("parameter", before, now, words)
        if change is not None:
            self._take(found)
            self.change = self.change or change

    def described(self) -> Array:
        """Returns this rank's description of the model, for `check`."""
        return self._model.described()

    def check(self, found: Sequence[Array]) -> None:
        """Raises CollectiveMismatchError if the models of the ranks differ after a change."""
        self._model.check(found)
        self.change = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets backwards inside the block keep this rank's own gradients."""
        before, self.synchronised = self.synchronised, False
        try:
            yield
        finally:
            self.synchronised = before

    def arrived(self, parameter: Tensor, target: Accumulate) -> None:
        """Records, from a hook, that a parameter has its whole gradient of this pass.

        Raises:
            AutogradError: Another pass is under way, or an earlier one failed.
            BlockingCallError: backward was called on a loop that telegrad runs.
        """
        if not isinstance(target, GradientTarget):
            raise AutogradError(
                f"a graph task that reaches a parameter of DistributedDataParallel needs a "
                f"GradientTarget to accumulate in, not {target!r}"
            )
        with critical.section, self._lock:
            active = self._active
        if active is None or active[0] is not target:
            reduction = self._begin(parameter, target)
            if reduction is None:
                return
        else:
            reduction = active[1]
        i = self._index.get(parameter)
        if i is not None:
            reduction.arrived(i)

    def shadow(self) -> None:
        """Takes part in a pass of the other ranks without gradients; waits for its end.

        The turn that announced the pass has been taken.
        """
        self.check_usable()
        target, found = _Nothing(), self._model.trained()
        with critical.section, self._lock:
            self._take_change(found)
            self.passes += 1
            reduction = Reduction(self, target, self.passes)
            self._active = (target, reduction)
        try:
            reduction.finish().wait()
        except BaseException as error:
            reduction.abandon(error)
            raise

    def check_usable(self) -> None:
        """Raises AutogradError if a pass has failed, so that the ranks are out of step."""
        with critical.section, self._lock:
            if self._broken is not None:
                raise AutogradError(self._broken)

    def over(self, reduction: Reduction, broken: str | None = None) -> None:
        """Records that a pass has ended; `broken` is the reason to refuse further ones."""
        with critical.section, self._lock:
            if self._active is not None and self._active[1] is reduction:
                self._active = None
            self._broken = self._broken or broken

    def rebuild(self, order: Sequence[int]) -> None:
        """Fills the buckets of further passes in the given order, which is the same on every rank.

        No pass is under way.
        """
        self.buckets = assign_buckets(self._slots, self._limit, order)
        self.buffers.clear()
        self.order_known = True

    def _begin(self, parameter: Tensor, target: GradientTarget) -> Reduction | None:
        """Begins the pass that keeps its gradients in `target`.

        None inside `no_sync()`, and if the parameter, whose gradient came first, has left the
        module.
        """
        if not self.synchronised:
            return None
        self.check_usable()
        found = self._model.trained()  # before the lock, as a module may be of a user's class
        if all(each.parameter is not parameter for each in found):
            return None
        refuse_to_block(
            "backward() through DistributedDataParallel",
            "in an async def function write `await rpc.to_thread(loss.backward)`",
        )
        with critical.section, self._lock:
            if self._active is not None:
                raise AutogradError(
                    f"a backward reached parameters of DistributedDataParallel while its backward "
                    f"{self._active[1].number} is under way; run one at a time, so that every "
                    "rank reduces in the same order"
                )
            self._take_change(found)
            self._refuse_recorded(target)
            turns = self.turns
            reduction = Reduction(self, target, self.passes + 1, turns)
            target.at_end(reduction)
            self.passes += 1
            self._active = (target, reduction)
        if turns is not None:
            reduction.start_turn(turns)  # an operation, which nobody starts inside a lock
        return reduction

    def _refuse_recorded(self, target: GradientTarget) -> None:
        """Refuses a pass with `create_graph`, or after one; no gradients are left then.

        All ranks make this error together, and none has started a reduction: they stay in step.
        """
        targets = (target, *target.earlier())
        found = (kept.get(each) for kept in targets for each in self.parameters)
        if is_grad_enabled() or any(each is not None and each.requires_grad for each in found):
            discard_gradients(self.parameters, targets)
            raise AutogradError(
                "create_graph=True does not go through DistributedDataParallel: the average over "
                "ranks is not recorded; write it inside no_sync(), and zero_grad() before the next "
                "backward outside. The gradients of this module's parameters are None now"
            )


@final
class _Nothing(GradientTarget):
    """The target of a pass in which this rank has no inputs; keeps no gradients."""

    def __call__(self, tensor: Tensor, gradient: object) -> None:
        raise AssertionError("a pass without inputs has no gradients")

    def get(self, tensor: Tensor) -> None:
        return None

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        return


def discard_gradients(parameters: Sequence[Tensor], targets: Sequence[GradientTarget]) -> None:
    """Sets the gradients of all parameters to None, wherever passes keep them."""
    for parameter in parameters:
        for kept in targets:
            kept.replace(parameter, None)


@final
class Reduction(PassEnd):
    """The buckets of one backward pass.

    One thread at a time calls `arrived` and `finish`; reductions complete in any thread.

    Args:
        reducer: The reducer of this pass.
        target: The place where this pass keeps its gradients.
        number: The number of the pass, from 1.
        turns: The turns to announce the pass in; None if it needs no announcement.
    """

    def __init__(
        self, reducer: Reducer, target: GradientTarget, number: int, turns: Turns | None = None
    ) -> None:
        self.number = number
        self._reducer = reducer
        self._target: GradientTarget | None = target
        # Each pass in a distributed context keeps its gradients apart. Gradients that earlier
        # passes kept under no_sync are averaged together with this one's, as in `tensor.grad`.
        self._earlier = list(target.earlier())
        self._group_is_over = False  # an operation has failed, so every rank gets an error
        self._plan = _Plan(reducer.buckets)
        self._averaged: dict[int, Any] = {}  # arrays and RowSparse
        self._order: list[int] | None = None  # of the first rank, if this pass asks for it
        self._present = np.zeros(len(reducer.parameters), np.uint8)  # 1: this rank has a gradient
        self._used: Array | None = None  # those of any rank, if a hook averages
        votes = 2 if reducer.hook is not None else 0
        self._unfinished = len(reducer.buckets) + (not reducer.order_known) + votes
        self._factor = 1.0
        # Any thread may compute what becomes of the averages, but in the stream of this pass.
        some = next(iter(reducer.parameters), None)
        self._place = None if some is None else current_place(some.data)
        self._lock = threading.Lock()  # guards _averaged, _unfinished and if _target is None
        self._done: Future[None] = new_future(
            reducer.group.submit, f"DistributedDataParallel backward {number}"
        )
        self._unfinished += (turns is not None) + (reducer.change is not None)

    def start_turn(self, turns: Turns) -> None:
        """Announces the pass; called once, before any gradient."""
        self._when_done(turns.start(Turn.BACKWARD), partial(self._take_turn, turns))

    def arrived(self, i: int) -> None:
        """Counts a gradient; starts the reduction of each bucket whose turn it is."""
        self._plan.arrived(i)
        while self._reducer.change is None and self._plan.next_is_filled():
            self._start_next()

    def finish(self) -> Completion:
        """Starts what remains, with zeros for the gradients that did not come."""
        change = self._reducer.change
        if change is not None:
            self._gather(self._reducer.described(), change, self._take_models)
        else:
            self._start_rest()
        # While callbacks may start operations, the thread that waits is not alone.
        if self._reducer.hook is not None or change is not None:
            return self._done
        return _Ending(self._done, self._reducer)

    def _start_rest(self) -> None:
        while self._plan.has_next():
            self._start_next()
        if self._reducer.hook is not None:
            self._gather(self._present, "parameters with a gradient", self._take_used)
        if not self._reducer.order_known:
            order = completed_order(self._plan.order, len(self._reducer.parameters))
            self._gather(np.array(order, np.int32), "order of gradients", self._take_order)

    def abandon(self, cause: BaseException) -> None:
        """Discards the gradients of all parameters, and makes the other ranks raise too."""
        with critical.section, self._lock:
            target, self._target = self._target, None
            if target is not None:  # None: all is averaged here, but the other ranks must fail too
                discard_gradients(self._reducer.parameters, (target, *self._earlier))
            self._averaged.clear()
        self._earlier.clear()
        self._done.try_set_exception(cause)
        if self._reducer.group.size == 1:
            self._reducer.over(self)
            return
        self._reducer.over(
            self,
            f"this DistributedDataParallel is out of step with the other ranks since its backward "
            f"{self.number} failed ({type(cause).__name__}: {cause}); wrap the module again, with "
            "a new process group",
        )
        if not self._group_is_over:
            self._reducer.group.abort(cause)

    def _start_next(self) -> None:
        if self._done.done():  # a reduction failed: raises its error, starts no further one
            self._done.value()
        b, bucket = self._plan.take_next()
        try:
            self._start(b, bucket)
        except MemoryError as error:
            self._note_memory(b, bucket, error)
            raise

    def _start(self, b: int, bucket: Bucket) -> None:
        if bucket.sparse:
            self._start_rows(b, bucket.members[0])
            return
        hook = self._reducer.hook
        buffer, views = self._fill(b, bucket, with_present=hook is None)
        if hook is not None:
            self._start_hook(hook, b, bucket, buffer)
            return
        work = self._reducer.group.start(buffer, self._label(f"bucket {b}"))
        self._when_done(work, lambda _: self._take(bucket, views))

    def _note_memory(self, b: int, bucket: Bucket, error: MemoryError) -> None:
        shapes = ", ".join([str(self._reducer.parameters[i].shape) for i in bucket.members])
        error.add_note(
            f"no memory was left for {self._name(f'bucket {b}')}, which has the gradients of "
            f"parameters of the shapes {shapes}; the gradients of the module are None"
        )

    def _start_hook(
        self, hook: Callable[[GradientBucket], Any], b: int, bucket: Bucket, buffer: Array
    ) -> None:
        given = GradientBucket(
            index=b,
            buffer=buffer,
            parameters=tuple(self._reducer.parameters[i] for i in bucket.members),
            is_last=not self._plan.has_next_dense(),
            process_group=self._reducer.group.process_group,
            label=self._label(f"bucket {b}"),
            absent=tuple(k for k, i in enumerate(bucket.members) if not self._present[i]),
        )
        with self._reducer.group.branch(b):
            work = hook(given)
        if not isinstance(work, Future | Work):
            raise TypeError(
                f"a communication hook must return a Future of the averaged bucket, not {work!r}"
            )
        take = partial(self._take_hooked, bucket, given)
        self._when_done(work, take, own=False, note=partial(self._note_memory, b, bucket))

    def _start_rows(self, b: int, i: int) -> None:
        parameter = self._reducer.parameters[i]
        xp = namespace(parameter.data)
        found = self._gradient(parameter)
        self._present[i] = found is not None
        rows, values = pack_rows(found, parameter.shape, parameter.dtype, xp)
        group = self._reducer.group
        of_rows = group.gather(rows, self._label(f"bucket {b}, rows"))
        of_values = group.gather(values, self._label(f"bucket {b}, values"))

        def take(found: list[Array]) -> None:  # with the rows; the values may still be on their way
            self._when_done(of_values, lambda values: self._take_rows(i, found, values))

        self._when_done(of_rows, take)

    def _gather(self, array: Array, what: str, take: Callable[[list[Array]], None]) -> None:
        work = self._reducer.group.gather(array, self._label(what))
        self._when_done(work, take)

    def _label(self, what: str) -> str:
        return self._name(what) + ("" if self._reducer.turns else UNEVEN)

    def _name(self, what: str) -> str:
        return f"DistributedDataParallel backward {self.number}, {what}"

    def _when_done(
        self,
        work: Completion,
        take: Callable[[Any], None],
        *,
        own: bool = True,
        note: Callable[[MemoryError], None] | None = None,
    ) -> None:
        """Calls `take(value)` when an operation is done; a failure ends the pass.

        `own` is True for an operation of the group, whose failure all ranks see. `note` tells for
        what memory was missing.
        """

        def settle(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                self._group_is_over |= own
                if note is not None and isinstance(error, MemoryError):
                    note(error)
                self._done.try_set_exception(error)
                return
            try:
                with working_in(self._place):
                    take(done.value())
            except Exception as failure:  # the top of a callback: backward must not wait for ever
                self._done.try_set_exception(failure)

        work.then(settle)

    def _fill(self, b: int, bucket: Bucket, *, with_present: bool) -> tuple[Array, list[Array]]:
        """Returns a new buffer with this rank's gradients, and its parts.

        `with_present` adds an item for each parameter that tells if this rank has a gradient.
        """
        parameters = [self._reducer.parameters[i] for i in bucket.members]
        shapes = [parameter.shape for parameter in parameters]
        if with_present:
            shapes.append((len(parameters),))
        size = sum(math.prod(shape) for shape in shapes)
        buffer = self._reducer.buffers.take(b, size, bucket.dtype, namespace(parameters[0].data))
        views = views_of(buffer, shapes)
        for i, parameter, view in zip(bucket.members, parameters, views, strict=False):
            gradient = self._gradient(parameter)
            if gradient is not None and is_row_sparse(gradient):
                gradient = gradient.to_dense()
            view[...] = 0 if gradient is None else gradient
            self._present[i] = gradient is not None
        if with_present:
            views[-1][...] = namespace(buffer).asarray(self._present[list(bucket.members)])
        return buffer, views

    def _gradient(self, parameter: Tensor) -> Any:
        """Returns this rank's gradient of a parameter, accumulated before or in this pass.

        It is an array, a RowSparse, or None.
        """
        if self._target is None:
            raise AutogradError(_OVER)
        total: Any = None
        for kept in (self._target, *self._earlier):
            gradient = kept.get(parameter)
            if gradient is None:
                continue
            part = gradient if is_row_sparse(gradient) else gradient.data
            total = part if total is None else total + part
        return total

    def _take(self, bucket: Bucket, views: list[Array]) -> None:
        used = np.flatnonzero(to_host(views[-1]))
        with critical.section, self._lock:
            self._averaged |= {bucket.members[k]: views[k] for k in used}
        self._finish_one()

    def _take_hooked(self, bucket: Bucket, given: GradientBucket, found: object) -> None:
        own = given.buffer
        if not is_array(found) or found.shape != own.shape or found.dtype != own.dtype:
            what = (
                f"shape {found.shape} and dtype {found.dtype}"
                if is_array(found)
                else type(found).__name__
            )
            raise ValueError(
                f"a communication hook must return a bucket's average as an array of shape "
                f"{own.shape} and dtype {own.dtype}, not {what}"
            )
        views = views_of(found, [parameter.shape for parameter in given.parameters])
        with critical.section, self._lock:
            self._averaged |= dict(zip(bucket.members, views, strict=True))
        self._finish_one()

    def _take_used(self, present: list[Array]) -> None:
        self._used = np.logical_or.reduce(present)
        self._finish_one()

    def _take_rows(self, i: int, rows: list[Array], values: list[Array]) -> None:
        mean = mean_of_rows(rows, values, self._reducer.parameters[i].shape)
        if mean is not None:
            with critical.section, self._lock:
                self._averaged[i] = mean
        self._finish_one()

    def _take_turn(self, turns: Turns, found: list[Array]) -> None:
        self._factor = turns.factor(turns.read(found))
        self._finish_one()

    def _take_models(self, found: list[Array]) -> None:
        self._reducer.check(found)
        self._start_rest()
        self._finish_one()

    def _take_order(self, orders: list[Array]) -> None:
        self._order = [int(i) for i in to_host(orders[0])]
        self._finish_one()

    def _finish_one(self) -> None:
        """Counts an operation; after the last one, replaces all gradients and ends the pass."""
        with critical.section, self._lock:
            self._unfinished -= 1
            last = self._unfinished == 1 and self._target is not None
        if last and self._reducer.hook is not None:
            # A hook of another rank may still fail although its operations succeeded. So no rank
            # replaces gradients before each one has said that all its hooks are done.
            self._gather(np.zeros(0, np.uint8), "hooks are done", lambda _: self._finish_one())
            return
        with critical.section, self._lock:
            if self._unfinished or self._target is None:
                return
            target, self._target = self._target, None
            for i, gradient in self._averaged.items():
                if self._used is not None and not self._used[i]:
                    continue  # no rank has a gradient
                parameter = self._reducer.parameters[i]
                target.replace(parameter, _as_kept(gradient, self._factor))
                for kept in self._earlier:
                    kept.replace(parameter, None)
            self._averaged.clear()
            self._earlier.clear()
        if self._order is not None:
            self._reducer.rebuild(self._order)
        self._reducer.over(self)
        self._done.try_set_result(None)


def _as_kept(gradient: Any, factor: float) -> Any:
    """Returns `factor` times a gradient as targets keep it: a RowSparse, or an array's Tensor."""
    if factor != 1.0:
        gradient = (gradient * factor).astype(gradient.dtype, copy=False)
    return gradient if is_row_sparse(gradient) else Tensor(gradient)


@final
class _Ending(Completion):
    """The end of a pass without a hook: a thread that waits for it is blocked in its operations."""

    def __init__(self, done: Future[None], reducer: Reducer) -> None:
        self._done = done
        self._reducer = reducer

    def wait(self) -> None:
        with self._reducer.group.blocking():
            self._done.wait()

    def exception(self) -> BaseException | None:
        return self._done.exception()

    def then(self, callback: Callable[[Any], object], /) -> object:
        return self._done.then(callback)


@final
class _Plan:
    """The buckets of a pass in their order, and the gradients that each still waits for."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._bucket_of = {i: b for b, bucket in enumerate(buckets) for i in bucket.members}
        self._waits_for = [len(bucket.members) for bucket in buckets]
        self._next = 0
        self.order: list[int] = []

    def arrived(self, i: int) -> None:
        self.order.append(i)
        self._waits_for[self._bucket_of[i]] -= 1

    def has_next(self) -> bool:
        return self._next < len(self._buckets)

    def next_is_filled(self) -> bool:
        return self.has_next() and self._waits_for[self._next] == 0

    def has_next_dense(self) -> bool:
        return any(not bucket.sparse for bucket in self._buckets[self._next :])

    def take_next(self) -> tuple[int, Bucket]:
        b, self._next = self._next, self._next + 1
        return b, self._buckets[b]


@final
class ReducerHook:
    """Tells a reducer of the gradients of one parameter; does nothing once the reducer is gone.

    A parameter has at most one such hook: a new reducer replaces the earlier hook.
    """

    def __init__(self, reducer: Reducer, parameter: Tensor) -> None:
        self._reducer = weakref.ref(reducer)
        for hook in post_accumulate_hooks(parameter):
            if isinstance(hook, ReducerHook):
                hook.remove()
        self._handle: RemovableHandle = parameter.register_post_accumulate_hook(self)

    def __call__(self, parameter: Tensor, target: Accumulate) -> None:
        """Tells the reducer."""
        reducer = self._reducer()
        if reducer is not None:
            reducer.arrived(parameter, target)

    def remove(self) -> None:
        """Removes the hook."""
        self._handle.remove()
