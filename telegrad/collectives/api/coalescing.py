"""The ways of a verb's call: run here, started, or collected in a block of `coalesced`.

with coalesced():
    all_reduce(a)        ─┐
    all_reduce(b)         ├─▶  one operation of all members, number n of the group:
    broadcast(c, src=1)  ─┘    all_reduce of a and b joined, then broadcast of c
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar, cast, final

import numpy as np

from telegrad.arrays import is_cupy
from telegrad.collectives.api.calls import group_of, ordered
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.link import Link
from telegrad.collectives.messages import Signature
from telegrad.collectives.on_device import CallOf, DeviceBackend, OnDevice
from telegrad.collectives.operation import Call
from telegrad.collectives.work import Work
from telegrad.errors import InvalidUseError
from telegrad.rpc import Future
from telegrad.rpc.seams import new_future

T = TypeVar("T")


def run_call(
    group: ProcessGroup, call: Call[T], async_op: bool, timeout: float | None
) -> Work[T] | T:
    """Runs a call in this thread and returns its value, or returns the Work of a started one.

    Inside a block of `coalesced` for the group, it collects the call and returns None or a Work.
    """
    group = ordered(group)
    if call.join is None:
        check_outside(group, call.signature.operation)
    elif (block := _block_of(group)) is not None:
        return block.collect(call, async_op, timeout)
    return group.start(call, timeout) if async_op else group.call(call, timeout)


def check_outside(group: ProcessGroup, verb: str) -> None:
    """Raises InvalidUseError if a verb is called inside a block that cannot join it."""
    if _block_of(group) is not None:
        raise InvalidUseError(
            f"{verb} cannot be coalesced, as all_reduce, broadcast, all_gather_single and "
            "reduce_scatter_single can; call it before or after the block of coalesced()"
        )


@contextmanager
def coalesced(
    group: ProcessGroup | None = None, async_op: bool = False, timeout: float | None = None
) -> Iterator[Coalesced]:
    """Joins the calls in its block into one operation, which goes out when the block ends.

    The block may call `all_reduce`, `broadcast`, `all_gather_single` and `reduce_scatter_single`
    on the group, in any order and number, the same on every rank. Calls of one verb with the same
    op, source and dtype share their messages. The arrays belong to the block until the operation
    is done: do not change them after the call. A call with
    `async_op=True` returns a Work that is done with the operation; calls that return an array
    need it. If the block raises, nothing is sent. Calls on other groups, and in other threads, are
    not collected.

    Args:
        group: The group; None for all workers.
        async_op: If True, the block ends at once, and its `work` is the Work of the operation.
        timeout: Seconds above 0 for the operation; None for the group's default; `math.inf` for no
            limit.

    Yields:
        The block. After its end with `async_op`, its attribute `work` is a `Work[None]`.

    Raises:
        InvalidUseError: In the block: a verb that cannot be joined, a `timeout=` of a single call,
            a missing `async_op=True`, a wait for a Work, a second block of the same group.
            At its end: two calls use the same memory, and one of them writes into it.
        CollectiveMismatchError: The ranks collected different calls; raised on all of them.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x, y = np.array([1.0]), np.array([2.0, group.rank])
        ...     with collectives.coalesced():  # one operation instead of two
        ...         collectives.all_reduce(x)
        ...         collectives.all_reduce(y)
        ...     with collectives.coalesced(async_op=True) as block:
        ...         ranks = collectives.all_gather_single(np.array(group.rank), async_op=True)
        ...     block.work.wait()
        ...     return x.tolist(), y.tolist(), ranks.wait().tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [([2.0], [4.0, 1.0], [0, 1]), ([2.0], [4.0, 1.0], [0, 1])]
    """
    chosen = ordered(group_of(group))
    check_outside(chosen, "coalesced")
    block = Coalesced(chosen)
    token = _blocks.set((*_blocks.get(), block))
    try:
        yield block
    except BaseException as error:
        block.drop(error)
        raise
    finally:
        _blocks.reset(token)
    block.send(async_op, timeout)


@final
class Coalesced:
    """The calls that a block of `coalesced` collects.

    Attributes:
        open: True until the block ends.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group: Final = group
        self.open = True
        self._pieces: list[Call[Any]] = []
        self._futures: list[Future[Any]] = []
        self._values: dict[int, Any] = {}  # of the calls, by their place
        self._thread = threading.get_ident()
        self._work: Work[None] | None = None

    @property
    def work(self) -> Work[None]:
        """The Work of the operation.

        Raises:
            InvalidUseError: The block has not ended, or it had no `async_op=True`.
        """
        if self._work is None:
            raise InvalidUseError(
                "only a block of coalesced(async_op=True) that has ended has a Work"
            )
        return self._work

    def collects(self, group: ProcessGroup) -> bool:
        """Returns True if calls on a group belong to this block: in its thread, until its end."""
        return self.open and self.group is group and self._thread == threading.get_ident()

    def collect(self, called: Call[T], async_op: bool, timeout: float | None) -> Work[T] | T:
        """Adds a call; returns None, or with `async_op` a Work that is done with the operation.

        Raises:
            InvalidUseError: The call needs other arguments in a block.
        """
        verb = called.signature.operation
        if timeout is not None:
            raise InvalidUseError(
                f"{verb} has a timeout of its own in a block of coalesced(), whose calls end "
                "together; write coalesced(timeout=)"
            )
        if not (called.written or async_op):
            raise InvalidUseError(
                f"{verb} returns an array, which does not exist before the block of coalesced() "
                "ends; write async_op=True, and wait for the Work after the block"
            )
        words = f"{called.signature} in a block of coalesced()"
        future = new_future(None, words)
        self._pieces.append(called)
        self._futures.append(future)
        if async_op:
            return Work(future, words, self.group.where, check=self._check_ended)
        return cast("T", None)

    def drop(self, error: BaseException) -> None:
        """Ends the block without sending anything."""
        self.open = False
        self._settle(
            InvalidUseError(
                f"nothing was sent, since the block of coalesced() raised {type(error).__name__}"
            )
        )

    def send(self, async_op: bool, timeout: float | None) -> None:
        """Ends the block: runs the operation in this thread, or starts it, if it has calls."""
        self.open = False
        if not self._pieces:
            done = new_future(None, "coalesced()")
            done.set_result(None)
            self._work = Work(done, "coalesced()", self.group.where) if async_op else None
            return
        try:
            call = self._call()
            if async_op:
                self._work = self.group.start(call, timeout)
            else:
                self.group.call(call, timeout)
        except BaseException as error:
            self._settle(error)
            raise
        if self._work is None:
            self._settle(None)
        else:
            self._work.add_done_callback(lambda done: self._settle(done.exception()))

    def _call(self) -> Call[None]:
        _check_apart([each for each in self._pieces if not is_cupy(each.staged[0].array)])
        kinds: dict[tuple[object, ...], list[int]] = {}
        for i, piece in enumerate(self._pieces):
            called = piece.signature
            kind = called.operation, called.op, called.root, called.dtype
            kinds.setdefault(kind, []).append(i)

        async def run(link: Link) -> None:
            backend = await link.backend()
            for places in kinds.values():
                pieces = [self._pieces[i] for i in places]
                calls_of = partial(_calls_of, link, places)
                assert pieces[0].join is not None
                values = await pieces[0].join(backend, pieces, calls_of)
                self._values |= zip(places, values, strict=True)

        return Call(
            signature=Signature(
                operation="coalesced", calls=tuple(each.signature for each in self._pieces)
            ),
            run=run,
            staged=[each.staged[0] for each in self._pieces],
            on_device=self._on_device(),
        )

    def _on_device(self) -> OnDevice[None] | None:
        ways = [each.on_device for each in self._pieces if each.on_device is not None]
        if len(ways) < len(self._pieces):
            return None

        async def run(backend: DeviceBackend, call_of: CallOf) -> None:
            for i, way in enumerate(ways):
                self._values[i] = await way.run(backend, partial(_call_of, call_of, i))

        return OnDevice(
            arrays=[array for way in ways for array in way.arrays],
            run=run,
            heard=any(way.heard for way in ways),
            by_nccl=all(way.by_nccl for way in ways),
        )

    def _check_ended(self) -> None:
        if self.open:
            raise InvalidUseError(
                "this Work is done after the block of coalesced(), which has not ended; wait for "
                "it after the block"
            )

    def _settle(self, error: BaseException | None) -> None:
        for i, future in enumerate(self._futures):
            if error is None:
                future.try_set_result(self._values[i])
            else:
                future.try_set_exception(error)


def _calls_of(link: Link, places: Sequence[int], r: int) -> list[Signature]:
    """Returns the calls at some places in the block of a rank."""
    calls = link.call_of(r).calls
    return [calls[i] for i in places]


def _call_of(call_of: CallOf, i: int, r: int) -> Signature:
    """Returns the i-th call in the block of a rank."""
    return call_of(r).calls[i]


_blocks: ContextVar[tuple[Coalesced, ...]] = ContextVar("telegrad_coalesced", default=())


def _block_of(group: ProcessGroup) -> Coalesced | None:
    """Returns the block that collects calls on a group here; a task may outlive it."""
    for each in _blocks.get():
        if each.collects(group):
            return each
    return None


# Steps that NumPy may take to compare the items of two arrays whose bounds overlap. After more of
# them, the arrays count as overlapping.
OVERLAP_STEPS: Final = 10_000


def _check_apart(pieces: Sequence[Call[Any]]) -> None:
    """Raises InvalidUseError if one call writes into an array of another: order would matter."""
    bounds = [np.lib.array_utils.byte_bounds(each.staged[0].array) for each in pieces]
    reached: list[int] = []  # arrays that end behind the start of the next one
    for i in sorted(range(len(pieces)), key=lambda i: bounds[i]):
        reached = [k for k in reached if bounds[k][1] > bounds[i][0]]
        for k in reached:
            a, b = pieces[k], pieces[i]
            if (a.written or b.written) and np.may_share_memory(
                a.staged[0].array,
                b.staged[0].array,
                max_work=OVERLAP_STEPS,  # type: ignore[arg-type]  # any number is allowed
            ):
                raise InvalidUseError(
                    f"{a.signature} and {b.signature} use the same memory in one block of "
                    "coalesced(), which runs them together; use two blocks"
                )
        reached.append(i)
