"""The reads and writes of one gRPC stream that are under way, and how they are given up.

gRPC ends an operation when its call is cancelled, with two exceptions: at the listener a write
waits for the dialler to read, whatever happens; and bytes that are stuck in a socket, behind a
peer that was stopped, hold up even a cancelled call. Whoever closes must not wait for either. Nor
must gRPC: with its last object goes its polling thread, and the loop would wait for the end of
that, which waits for the end of the operation.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any, final

import grpc.aio

from telegrad.transport.grpc_errors import STREAM_ERRORS, closed

__all__ = ["Operations", "keep_polling"]


def keep_polling() -> None:
    """Has gRPC keep its polling thread for the life of the process: something may never end."""
    grpc.aio.init_grpc_aio()


@final
class Operations:
    """What tasks do on one stream; on the loop.

    Args:
        description: Of the stream, for errors.
    """

    def __init__(self, description: str) -> None:
        self._description = description
        self._tasks: set[asyncio.Task[Any]] = set()
        self._abandoned: set[asyncio.Task[Any]] = set()

    def one(self) -> AbstractContextManager[None]:
        """Stands around one operation, in the task that awaits it.

        Raises:
            CarrierClosedError: The stream is over, or the operation was given up.
        """
        task = asyncio.current_task()
        assert task is not None
        return _Operation(self, task)

    def abandon(self) -> None:
        """Gives up what is under way: it raises CarrierClosedError."""
        for task in self._tasks - self._abandoned:
            self._abandoned.add(task)
            task.cancel()

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Notes an operation."""
        self._tasks.add(task)

    def end(self, task: asyncio.Task[Any], error: BaseException | None) -> None:
        """Forgets an operation, and raises what stands for its error, if that is another one."""
        abandoned = task in self._abandoned
        self._tasks.discard(task)
        self._abandoned.discard(task)
        if error is None:
            return
        if isinstance(error, STREAM_ERRORS):
            raise closed(self._description, error) from error
        if isinstance(error, asyncio.CancelledError):
            keep_polling()
            if abandoned:
                task.uncancel()
            if not task.cancelling():
                # A read that is under way when its channel closes ends like this, too.
                raise closed(self._description) from error


@final
class _Operation(AbstractContextManager[None]):
    """A class, not a generator: every message passes two, and those take three times as long."""

    __slots__ = ("_operations", "_task")

    def __init__(self, operations: Operations, task: asyncio.Task[Any]) -> None:
        self._operations = operations
        self._task = task

    def __enter__(self) -> None:
        self._operations.begin(self._task)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._operations.end(self._task, error)
