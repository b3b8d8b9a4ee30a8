"""The messages that any thread writes to one gRPC stream, without a task or a turn of the loop.

gRPC's coroutine for a write starts the operation before it waits for anything. It is begun in the
thread that has the message. Its end comes to the loop as a future, which nobody waits for until
there is a next message. [A call over the loop: 6 turns of it at each end, and 3 wake-ups; in this
way: 3 and 2.]
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, final

import grpc.aio

from telegrad.transport.base import CarrierClosedError, Sending
from telegrad.transport.grpc.errors import STREAM_ERRORS, closed

__all__ = [
    "Operations",
    "Writes",
    "keep_polling",
]

T = TypeVar("T")


# -- the reads and writes of one gRPC stream that are under way, and how they are given up -------
#
# gRPC ends an operation when its call is cancelled, with two exceptions. At the listener a write
# waits for the dialler to read, whatever happens. And bytes that are stuck in a socket, behind a
# peer that was stopped, delay even a cancelled call. A close must not wait for either. Nor must
# gRPC: with its last object goes its polling thread, and the loop would wait for the end of that
# thread, which waits for the end of the operation.


def keep_polling() -> None:
    """Keeps gRPC's polling thread for the life of the process: an operation may never end."""
    grpc.aio.init_grpc_aio()


@final
class Operations:
    """The operations of tasks on one stream, one for each task at a time; on the loop.

    Args:
        description: The description of the stream, for errors.
    """

    def __init__(self, description: str) -> None:
        self._description = description
        self._given_up: dict[asyncio.Task[Any], bool] = {}

    async def run(self, operation: Awaitable[T]) -> T:
        """Awaits one operation.

        Raises:
            CarrierClosedError: The stream is over.
        """
        task = asyncio.current_task()
        assert task is not None
        self._given_up[task] = False
        try:
            return await operation
        except STREAM_ERRORS as error:
            raise closed(self._description, error) from error
        except asyncio.CancelledError as error:
            keep_polling()
            if self._given_up[task]:
                task.uncancel()
            if task.cancelling():
                raise
            # A read that is under way when its channel closes ends like this, too.
            raise closed(self._description) from error
        finally:
            del self._given_up[task]

    def abandon(self) -> None:
        """Gives up the operations under way: they raise CarrierClosedError."""
        for task, given_up in self._given_up.items():
            if not given_up:
                self._given_up[task] = True
                task.cancel()


# ------------------------------------------------------------------------------------------------


@final
class Writes:
    """The writes of one stream; one at a time.

    Args:
        description: The description of the stream, for errors.
        write: The write function of gRPC; nothing else may write meanwhile.
    """

    def __init__(
        self, description: str, write: Callable[[bytes], Coroutine[Any, Any, None]]
    ) -> None:
        self._description = description
        self._write = write
        self._begin_lock = threading.Lock()  # guards the next two
        self._ended = False
        self._last: _Write | None = None

    def begin(self, message: bytes) -> Sending:
        """Begins a write, in any thread, once the last one has left.

        Raises:
            CarrierClosedError: The stream is over.
        """
        with self._begin_lock:
            if self._ended:
                raise closed(self._description)
            self._last = _Write(self._description, self._write(message))
            return self._last

    @property
    def under_way(self) -> bool:
        """True if a write has begun and not left; on the loop."""
        last = self._last
        return last is not None and not last.done()

    def end(self) -> None:
        """Begins no more writes; on the loop. A write under way may still leave."""
        with self._begin_lock:
            self._ended = True
        if self._last is not None:
            self._last.let_go()

    def abandon(self) -> None:
        """Gives up a write under way, after `end`: it may never leave."""
        if self.under_way:
            keep_polling()


@final
class _Write(Sending):
    """One message.

    Args:
        description: The description of the stream, for errors.
        write: gRPC's coroutine, not begun yet.

    Raises:
        CarrierClosedError: The stream is over.
    """

    __slots__ = ("_coroutine", "_description", "_left", "_unheard")

    def __init__(self, description: str, write: Coroutine[Any, Any, None]) -> None:
        self._description = description
        self._coroutine = write
        try:
            self._left: Future[None] = write.send(None)
        except STREAM_ERRORS as error:
            raise closed(description, error) from error
        self._unheard = [self._left]  # taken by the one that hears of the end

    def done(self) -> bool:
        return self._left.done()

    def result(self) -> None:
        try:
            left = self._unheard.pop()
        except IndexError:
            return
        if error := left.exception():  # gRPC finds out by itself, on the loop
            self._coroutine.close()
            raise closed(self._description, error) from error
        try:
            self._coroutine.send(None)  # returns the objects that gRPC had borrowed
        except StopIteration:
            return

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        self._left.add_done_callback(call)

    def let_go(self) -> None:
        """Hears of the end by itself, whenever that is; on the loop."""
        self._left.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        with contextlib.suppress(CarrierClosedError):
            self.result()
