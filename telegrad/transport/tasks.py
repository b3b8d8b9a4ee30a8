"""The tasks that an exchange has started on its loop, awaited or cancelled when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, final

from telegrad.transport.log import get_logger

logger = get_logger(__name__)

CANCEL_SECONDS = 1.0  # for a cancelled task to end; that takes a turn of the loop


@final
class Tasks:
    """The tasks that an exchange has started; on the loop alone."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Starts a task; logs its failure."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def end(self, timeout: float) -> None:
        """Waits so many seconds for the tasks that still run; cancels those that take longer."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_SECONDS)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the transport failed", exc_info=error)
