"""The messages that any thread writes to one gRPC stream, with neither a task nor a turn of the loop.

gRPC's coroutine for a write starts the operation before it waits for anything. It is begun in the
thread that has the message; the end comes to the loop as a future, which nobody waits for until there
is a next message. [A call over the loop: 6 turns of it at each end, and 3 wake-ups; so: 3 and 2.]
"""

from __future__ import annotations

import contextlib
import threading
from asyncio import Future
from collections.abc import Callable, Coroutine
from typing import Any, final

from telegrad.transport.base import CarrierClosedError, Sending
from telegrad.transport.grpc_errors import STREAM_ERRORS, closed
from telegrad.transport.grpc_operations import keep_polling

__all__ = ["Writes"]


@final
class Writes:
    """Those of one stream; one at a time.

    Args:
        description: Of the stream, for errors.
        write: gRPC's function; nothing else may write meanwhile.
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
        """Begins one, in any thread, once the last one has left.

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
        """Whether one has begun and not left; on the loop."""
        last = self._last
        return last is not None and not last.done()

    def end(self) -> None:
        """Begins no more; on the loop. What is under way may still leave."""
        with self._begin_lock:
            self._ended = True
        if self._last is not None:
            self._last.let_go()

    def abandon(self) -> None:
        """Gives up what is under way, after `end`: it may never leave."""
        if self.under_way:
            keep_polling()


@final
class _Write(Sending):
    """One message.

    Args:
        description: Of the stream, for errors.
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
        self._unheard = [self._left]  # taken by whoever hears of the end

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
            self._coroutine.send(None)  # gives back what gRPC had borrowed
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
