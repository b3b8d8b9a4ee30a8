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
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, final

from telegrad.rpc.served_call import current_served_call

if TYPE_CHECKING:
    from telegrad.rpc.future import Future

__all__ = [
    "PoolThread",
    "TaskRun",
    "Wait",
    "awaiting",
    "blocking_in_pool",
    "comes_from",
    "enter_task_run",
    "pool_thread",
]

Awaited: TypeAlias = "Future[Any]"

_NOTHING: AbstractContextManager[None] = nullcontext()


@final
class Wait:
    """One wait without a limit of its own, which the failure of a future ends.

    Attributes:
        futures: What it waits for: all of these.
        started: When, in nanoseconds of `time.monotonic_ns`: two waits of one thread or task
            never have the same.
    """

    __slots__ = ("futures", "started")

    def __init__(self, futures: tuple[Awaited, ...]) -> None:
        self.futures = futures
        self.started = time.monotonic_ns()


class PoolThread(threading.Thread, ABC):
    """A thread that wants to know when the user function in it waits.

    Attributes:
        wait: What it waits for; None while it runs, and in a wait that ends by itself.
    """

    wait: Wait | None = None

    @abstractmethod
    def enter_wait(self) -> None:
        """A wait begins: another thread may take its place."""

    @abstractmethod
    def leave_wait(self) -> None:
        """The wait is over; the thread goes on at once, whoever took its place."""


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


def blocking_in_pool(
    *futures: Awaited, ends_by_itself: bool = True
) -> AbstractContextManager[None]:
    """Returns a block around a blocking wait; costs next to nothing outside a pool thread.

    Args:
        futures: What is waited for, all of them.
        ends_by_itself: Whether the wait has a limit of its own, or may end for another reason.
    """
    thread = threading.current_thread()
    if not isinstance(thread, PoolThread):
        return _NOTHING
    return _Blocking(thread, None if ends_by_itself else Wait(futures))


def awaiting(future: Awaited) -> AbstractContextManager[None]:
    """Returns a block around a wait of a task."""
    run = _task_run.get()
    if run is None or run.task() is not asyncio.current_task():  # a task that it started
        return _NOTHING
    return _Awaiting(run, Wait((future,)))


@final
class _Blocking(AbstractContextManager[None]):
    """Classes, not generators: every call waits, and those take three times as long."""

    __slots__ = ("_outer", "_thread", "_wait")

    def __init__(self, thread: PoolThread, wait: Wait | None) -> None:
        self._thread = thread
        self._wait = wait
        self._outer: Wait | None = None

    def __enter__(self) -> None:
        thread = self._thread
        served = current_served_call()
        if served is not None:
            served.let_others_in()
        self._outer, thread.wait = thread.wait, self._wait
        thread.enter_wait()

    def __exit__(self, *_: object) -> None:
        self._thread.leave_wait()
        self._thread.wait = self._outer


@final
class _Awaiting(AbstractContextManager[None]):
    __slots__ = ("_run", "_wait")

    def __init__(self, run: TaskRun, wait: Wait) -> None:
        self._run = run
        self._wait = wait

    def __enter__(self) -> None:
        self._run.wait = self._wait

    def __exit__(self, *_: object) -> None:
        self._run.wait = None


def pool_thread() -> PoolThread | None:
    """Returns this thread if it is one of a pool's."""
    thread = threading.current_thread()
    return thread if isinstance(thread, PoolThread) else None


def comes_from(future: Awaited, source: object) -> None:
    """Notes what will complete a future, so that a wait for it can be followed.

    Args:
        future: Pending, or just completed.
        source: The future or futures whose completion it waits for (as a `Wait` where the first
            failure of one will do), the `PendingCall` whose reply it stands for, the `ServedCall`
            that makes its value, or the thread or task that does.
    """
    if type(source) is type(future):
        source = weakref.ref(source)  # it knows this one already: no circle
    with future._lock:
        if not future.done():
            future._source = source
