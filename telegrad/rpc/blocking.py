"""What of the code that serves calls waits at this moment, and for which futures.

Two want to know. The pool, that one of its threads is about to block: whoever waits holds up
nobody, neither for a thread nor for the bytes that its call was admitted with. And the search for
cycles (`wait_probe`): it follows each wait to the future, and from there to what will complete
that, which the library notes with `comes_from`.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

from telegrad.errors import AgentForkedError
from telegrad.rpc.ambient import forked_at
from telegrad.rpc.served_call import ServedCall, last_served_call

if TYPE_CHECKING:
    from telegrad.rpc.future import Future

__all__ = [
    "NextItem",
    "PoolThread",
    "TaskRun",
    "Wait",
    "awaiting",
    "blocking",
    "check_not_inherited",
    "comes_from",
    "enter_task_run",
    "pool_thread",
]

Awaited: TypeAlias = "Future[Any]"

_NOTHING: AbstractContextManager[None] = nullcontext()


@final
class Wait:
    """One wait without a limit of its own, which any of its futures may end.

    It waits for all of them, and the failure of one ends it; or for the first.

    Attributes:
        futures: What it waits for; those that are done do not count.
        started: When, in nanoseconds of `time.monotonic_ns`: two waits of one thread or task
            never have the same.
    """

    __slots__ = ("futures", "started")

    def __init__(self, futures: Collection[Awaited]) -> None:
        self.futures = futures
        self.started = time.monotonic_ns()


@final
class NextItem:
    """What a reader of a stream waits for; the source of the future that wakes it.

    Attributes:
        reply: Of the request for the stream: its end.
        number: How many items came before it.
    """

    __slots__ = ("number", "reply")

    def __init__(self, reply: Awaited, number: int) -> None:
        self.reply = reply
        self.number = number


class PoolThread(threading.Thread):
    """A thread that wants to know when the user function in it waits.

    Not of `ABCMeta`, whose `isinstance` takes ten times as long, and each wait asks.

    Attributes:
        wait: What it waits for; None while it runs, and in a wait that ends by itself.
    """

    wait: Wait | None = None

    def enter_wait(self) -> None:
        """A wait begins: another thread may take its place."""
        raise NotImplementedError

    def leave_wait(self) -> None:
        """The wait is over; the thread goes on at once, whoever took its place."""
        raise NotImplementedError


@final
class TaskRun:
    """The coroutine of a served call.

    Attributes:
        task: Its task.
        wait: What the task itself awaits; None while it runs, or awaits something else.
    """

    __slots__ = ("task", "wait")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = weakref.ref(task)
        self.wait: Wait | None = None


_task_run: ContextVar[TaskRun | None] = ContextVar("telegrad_task_run", default=None)


def enter_task_run() -> TaskRun | None:
    """Makes the running task, in its own Context, one whose waits are noted."""
    task = asyncio.current_task()
    if task is None:
        return None
    run = TaskRun(task)
    _task_run.set(run)
    return run


def blocking(
    wake: Callable[[], None],
    *futures: Awaited,
    ends_by_itself: bool = True,
    first_of: Collection[Awaited] = (),
) -> AbstractContextManager[None]:
    """Returns a block around a blocking wait; costs next to nothing outside served calls.

    A wait of a served call ends when that is cancelled: the block is left with its error, unless
    all futures were completed until then.

    Args:
        wake: Ends the wait early; from any thread, perhaps when it has ended.
        futures: What is waited for, all of them.
        ends_by_itself: Whether the wait has a limit of its own, or may end for another reason.
        first_of: What the first of is waited for, where it is not all.

    Raises:
        AgentForkedError: One of the futures is of an agent of the process that this was forked from.
    """
    if forked_at():
        check_not_inherited(futures)
    current = threading.current_thread()
    thread = current if isinstance(current, PoolThread) else None
    served = last_served_call()  # a thread may outlive the coroutine that it works for
    if thread is None and served is None:
        return _NOTHING
    wait = None if ends_by_itself else Wait(futures or first_of)
    return _Blocking(thread, served, wake, futures, wait)


def awaiting(future: Awaited) -> TaskRun | None:
    """Notes that a task awaits a future; returns the run whose `wait` is to be reset after that.

    None where the task is not the coroutine of a served call.

    Raises:
        AgentForkedError: See `blocking`.
    """
    if forked_at():
        check_not_inherited((future,))
    run = _task_run.get()
    if run is None or run.task() is not asyncio.current_task():  # a task that it started
        return None
    run.wait = Wait((future,))
    return run


@final
class _Blocking(AbstractContextManager[None]):
    """Classes, not generators: every call waits, and those take three times as long."""

    __slots__ = ("_futures", "_outer", "_served", "_thread", "_wait", "_wake", "_woken")

    def __init__(
        self,
        thread: PoolThread | None,
        served: ServedCall | None,
        wake: Callable[[], None],
        futures: tuple[Awaited, ...],
        wait: Wait | None,
    ) -> None:
        self._thread = thread
        self._served = served
        self._wake = wake
        self._futures = futures
        self._wait = wait
        self._outer: Wait | None = None
        self._woken = False

    def cancel(self) -> bool:
        """Hears that the call was cancelled in which this waits."""
        self._woken = True
        self._wake()
        return True

    def __enter__(self) -> None:
        served, thread = self._served, self._thread
        if served is not None:
            served.let_others_in()
            served.waits.add(self)
            if served.cancelled:  # perhaps before it knew of this
                self.cancel()
        if thread is not None:
            self._outer, thread.wait = thread.wait, self._wait
            thread.enter_wait()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        served, thread = self._served, self._thread
        if thread is not None:
            thread.leave_wait()
            thread.wait = self._outer
        if served is not None:
            served.waits.discard(self)
            if self._woken and kind is None and not self._is_done():
                served.check()

    def _is_done(self) -> bool:
        return bool(self._futures) and all(future.done() for future in self._futures)


def pool_thread() -> PoolThread | None:
    """Returns this thread if it is one of a pool's."""
    thread = threading.current_thread()
    return thread if isinstance(thread, PoolThread) else None


def comes_from(future: Awaited, source: object) -> None:
    """Notes what will complete a future, so that a wait for it can be followed.

    Args:
        future: Pending, or just completed.
        source: The future or futures whose completion it waits for (as a `Wait` where the first
            failure of one will do), the `PendingCall` whose reply it stands for, the `NextItem` of
            a stream, the `ServedCall` that makes its value, or the thread or task that does. None
            while nothing is at work on it.
    """
    if type(source) is type(future):
        source = weakref.ref(source)  # it knows this one already: no circle
    with future._lock:
        if not future.done():
            future._source = source


def check_not_inherited(futures: Iterable[Awaited]) -> None:
    """Checks that nothing is waited for that only the parent of this process will ever hear of.

    What is of an agent of this process, or of none, may be waited for; so may what is completed.

    Raises:
        AgentForkedError: An agent of the parent made one of the futures, or one that it comes from.
    """
    forked = forked_at()
    if not forked:
        return
    places: list[object] = list(futures)
    kinds = {type(future) for future in places}
    while places:
        thing = places.pop()
        if isinstance(thing, weakref.ReferenceType):
            thing = thing()
        if isinstance(thing, tuple):
            places += thing
        elif isinstance(thing, Wait):
            places += thing.futures
        elif type(thing) in kinds:
            future: Awaited = cast("Awaited", thing)
            if future.done():
                continue
            if future._dispatch is not None and future._made <= forked:
                raise AgentForkedError(
                    f"{future._label} was made before this process was forked, by an agent of its "
                    "parent, which alone hears of it; wait for it there, and start processes with "
                    "multiprocessing's 'spawn' method"
                )
            places.append(future._source)
