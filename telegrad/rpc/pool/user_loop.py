"""The user loop: a second event loop, in a thread of its own, for `async def` functions.

While coroutines run, the agent's deadlines look in once a second: a coroutine that held the loop
all the time in between is named in the log, since it delays all others. Functions that asyncio runs
in threads (`asyncio.to_thread`) run in the agent's pool, which nobody waits for at the end.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar, final

from telegrad.critical import critical
from telegrad.rpc.base.tick import Tick
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.transport import LoopThread, get_logger

P = ParamSpec("P")
T = TypeVar("T")

Finished: TypeAlias = Callable[[object, BaseException | None], None]
_Outcome: TypeAlias = tuple[object, BaseException | None]

SLOW_SECONDS = 1.0  # an await takes microseconds; code that holds it for so long computes or blocks

_logger = get_logger(__name__)


@final
class UserLoop:
    """Runs coroutines of user code; its thread starts with the first of them.

    Args:
        name: The agent's name, for the name of the thread.
        deadlines: The deadlines that tick the looks.
        submit: Runs a function in the pool.
    """

    def __init__(self, name: str, deadlines: Deadlines, submit: Callable[..., None]) -> None:
        self._name = name
        self._loop = LoopThread(f"{name}-user-loop")
        self._threads = _Threads(submit)
        self._submit = submit
        self._tick = Tick(deadlines.after, SLOW_SECONDS, self._look, lambda: self._running > 0)
        self._lock = threading.Lock()  # guards the next three
        self._started = False
        self._closed = False
        self._running = 0
        self._owes_beat = False  # until the user loop has run `_beat`
        self._warned = False

    def spawn(
        self,
        name: str,
        context: contextvars.Context,
        start: Callable[[], Coroutine[Any, Any, Any]],
        started: Callable[[Callable[[], None]], None],
        finished: Finished,
    ) -> None:
        """Runs the coroutine that `start` returns, as a task inside `context`. From any thread.

        Args:
            name: The name of the function.
            context: The Context of the task, in which `finished` runs, too.
            start: Makes the coroutine, on the loop.
            started: Takes a function that cancels the task, from any thread.
            finished: Takes the task's value or error, whatever it raised, on the loop.

        Raises:
            RuntimeError: The loop was closed.
        """

        def begin() -> None:
            loop = asyncio.get_running_loop()
            task = loop.create_task(_run(start), name=name, context=context)
            task.add_done_callback(self._count_down)
            task.add_done_callback(partial(_tell, finished), context=context)
            started(lambda: self._cancel(task))

        with critical.section, self._lock:
            if self._closed:
                raise RuntimeError("the agent was shut down")
            if not self._started:
                self._loop.acquire()
                self._loop.call_soon(self._use_threads)
                self._started = True
            # Under the lock: if `close` came between the look at `_closed` and the hop, the loop
            # would end first and never run `begin`.
            self._running += 1
            self._loop.call_soon(begin)
        self._tick.start()

    def close(self, limit: float) -> None:
        """Cancels the tasks that run and ends the thread; idempotent.

        Args:
            limit: Seconds to wait for tasks that ignore their cancellation. They may end later, or
                never; the thread is a daemon.
        """
        with critical.section, self._lock:
            self._closed = True
            started, self._started = self._started, False
        if started:
            ending = threading.Thread(
                target=self._loop.release, name=f"{self._name}-user-loop-end", daemon=True
            )
            ending.start()
            ending.join(limit)

    def _use_threads(self) -> None:
        asyncio.get_running_loop().set_default_executor(self._threads)

    def _count_down(self, _: asyncio.Task[Any]) -> None:
        with critical.section, self._lock:
            self._running -= 1

    def _beat(self) -> None:
        self._owes_beat = False

    def _look(self) -> None:
        """Names the task that has held the user loop since the last look; asks for a beat."""
        if not self._owes_beat:
            # Set before the hop: the user loop may answer at once, and clear it.
            self._owes_beat, self._warned = True, False
            with critical.section, self._lock:
                if not self._closed:
                    self._loop.call_soon(self._beat)
        elif not self._warned and (task := asyncio.current_task(self._loop.loop)) is not None:
            self._warned = True
            self._submit(
                _logger.warning,
                "%s has held the user loop of worker %r for over %.3g s and delays every async def "
                "function there; compute in `await rpc.to_thread(...)`, and await what waits",
                task.get_name(),
                self._name,
                SLOW_SECONDS,
            )

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        with critical.section, self._lock:
            # Under the lock: once `close` has had it, the loop and its thread may be gone.
            if self._started:
                self._loop.call_soon(task.cancel)


@final
class _Threads(ThreadPoolExecutor):
    """The executor that asyncio takes for its pool of threads; it has none, and uses the agent's.

    The threads of `concurrent.futures` are waited for when their pool is closed, and by the
    interpreter before it runs any exit hook, for as long as a function in them blocks.
    """

    def __init__(self, submit: Callable[..., None]) -> None:
        super().__init__(max_workers=1)  # the first `submit` would start it: there is none
        self._submit = submit

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:  # around the user's function
                future.set_exception(error)
            else:
                future.set_result(value)

        self._submit(run)
        return future


async def _run(start: Callable[[], Coroutine[Any, Any, Any]]) -> _Outcome:
    """Calls the function inside the task, so that its wrong arguments are the task's error.

    An exception that asyncio would raise out of the loop, and so end the loop, is no error of the
    task's.
    """
    try:
        return await start(), None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _tell(finished: Finished, task: asyncio.Task[_Outcome]) -> None:
    if task.cancelled():
        finished(None, asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        finished(None, error)
    else:
        finished(*task.result())
