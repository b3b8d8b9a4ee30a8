"""The user loop: a second event loop, in a thread of its own, for `async def` functions."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, final

from telegrad.transport import LoopThread

__all__ = ["UserLoop"]

_logger = logging.getLogger(__name__)


@final
class UserLoop:
    """Runs coroutines of user code; its thread starts with the first of them.

    Args:
        name: The agent's, for the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = LoopThread(f"{name}-user-loop")
        self._lock = threading.Lock()
        self._started = False
        self._closed = False

    def spawn(
        self,
        context: contextvars.Context,
        start: Callable[[], Coroutine[Any, Any, Any]],
        started: Callable[[Callable[[], None]], None],
        finished: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        """Runs what `start` returns as a task inside `context`. From any thread.

        Args:
            context: Also that in which `finished` runs.
            start: Makes the coroutine, on the loop.
            started: Hears how to cancel the task, from any thread.
            finished: Hears of its end, on the loop.

        Raises:
            RuntimeError: The loop was closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the agent was shut down")
            if not self._started:
                self._loop.acquire()
                self._started = True
            self._loop.call_soon(self._begin, context, start, started, finished)

    def close(self) -> None:
        """Cancels what runs and ends the thread; idempotent."""
        with self._lock:
            self._closed = True
            started, self._started = self._started, False
        if started:
            self._loop.release()

    def _begin(
        self,
        context: contextvars.Context,
        start: Callable[[], Coroutine[Any, Any, Any]],
        started: Callable[[Callable[[], None]], None],
        finished: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        task = asyncio.get_running_loop().create_task(_run(start), context=context)
        task.add_done_callback(finished, context=context)
        started(lambda: self._cancel(task))

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        with self._lock:
            if self._started:
                self._loop.call_soon(task.cancel)


async def _run(start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Calls the function inside the task, so that its wrong arguments are the task's error."""
    return await start()
