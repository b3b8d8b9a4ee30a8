"""The reads and writes of one gRPC stream that are under way, and how they are given up.

gRPC ends an operation when its call is cancelled, with two exceptions: at the listener a write
waits for the dialler to read, whatever happens; and bytes that are stuck in a socket, behind a
peer that was stopped, hold up even a cancelled call. Whoever closes must not wait for either. Nor
must gRPC: with its last object goes its polling thread, and the loop would wait for the end of
that, which waits for the end of the operation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
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

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Stands around one operation, in the task that awaits it.

        Raises:
            CarrierClosedError: The stream is over, or the operation was given up.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except STREAM_ERRORS as error:
            raise closed(self._description, error) from error
        except asyncio.CancelledError as error:
            keep_polling()
            if task in self._abandoned:
                task.uncancel()
            if task.cancelling():
                raise
            # A read that is under way when its channel closes ends like this, too.
            raise closed(self._description) from error
        finally:
            self._tasks.discard(task)
            self._abandoned.discard(task)

    def abandon(self) -> None:
        """Gives up what is under way: it raises CarrierClosedError."""
        for task in self._tasks - self._abandoned:
            self._abandoned.add(task)
            task.cancel()
