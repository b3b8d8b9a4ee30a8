"""Moving the frames of one direct socket: whoever posts writes, and the socket's reader reads.

Whoever posts writes at once what the socket has room for; the loop sends the rest. The messages of
a burst are written together (`burst`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import final

from telegrad.transport.base import CarrierClosedError, Direct
from telegrad.transport.io.pump import READ_ERRORS, Frames, Pump
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.transport.loop import LoopThread

__all__ = ["SocketPump"]

BATCH = 64  # messages that are read of one stream before others have their turn


@final
class SocketPump(Pump):
    """Moves the messages of one stream.

    Args:
        direct: What moves the bytes.
        frames: The connection's end of the stream.
        loop: The loop that sends what a socket had no room for.
        reader: The reader of all sockets of the exchange.

    Raises:
        CarrierClosedError: The stream has ended here already.
    """

    def __init__(
        self, direct: Direct, frames: Frames, loop: LoopThread, reader: SocketReader
    ) -> None:
        if (descriptor := direct.fileno()) < 0:
            raise CarrierClosedError("the local stream was closed before it was used")
        self._descriptor = descriptor
        self._direct = direct
        self._frames = frames
        self._loop = loop
        self._reader = reader
        self._open = True  # this and the next on the loop alone
        self._draining = False

    # On the loop.

    def start(self, preamble: bytes) -> None:
        """Has the socket watched, and writes what waits."""
        self._reader.add(self._descriptor, self)
        self._write(preamble)
        # What came behind the handshake is in the buffer of the socket's object.
        self._loop.call_soon(self.read)

    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Ends the stream, behind a last message if the socket has room for it. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._reader.remove(self._descriptor)
        if self._draining:
            self._draining = False
            asyncio.get_running_loop().remove_writer(self._descriptor)
            self._direct.end_writing()
        elif farewell is not None and self._direct.begin_writing(wait=False):
            with contextlib.suppress(CarrierClosedError):
                self._direct.put(farewell())
            self._direct.end_writing()
        self._direct.end()

    # From any thread.

    def wake(self) -> None:
        """Writes here, or has the messages of a burst written together."""
        if not self._reader.bursts.takes(self._write):
            self._write()

    # In the thread that has the reader's role.

    def read(self) -> int:
        """Reads what is there, unless another thread does.

        Returns:
            How many messages brought requests.
        """
        direct, take, requests = self._direct, self._frames.take, 0
        if not direct.begin_reading():
            return 0
        try:
            for _ in range(BATCH):
                if (message := direct.take()) is None:
                    return requests
                requests += take(message)
                if not direct.holds_more:
                    return requests  # if there is more, whoever polls next is told
        except READ_ERRORS as error:
            self._fail(error)
            return requests
        except BaseException as error:  # a message may be lost, and with it this stream
            self._fail(CarrierClosedError(repr(error)))
            if not isinstance(error, Exception):  # raised by a signal handler
                raise
            return requests
        finally:
            direct.end_reading()
        self._loop.call_soon(self.read)  # the rest may be in the buffer, which no poll sees
        return requests

    def _fail(self, error: Exception) -> None:
        """Ends the stream on the loop; in the reader's role, so that the descriptor is open still."""
        self._reader.stop(self._descriptor)
        self._loop.call_soon(self._frames.failed, error)

    # In the thread that has the writer's turn.

    def _write(self, preamble: bytes = b"") -> None:
        """Writes until nothing is left."""
        direct = self._direct
        if not direct.begin_writing():
            return  # the stream has ended, and the next one begins with the turn
        kept = False
        try:
            message: bytes | None = preamble or self._frames.next_message()
            while message is not None:
                kept = not direct.put(message)
                if kept:
                    self._loop.call_soon(self._drain)
                    return
                if self._frames.ending:
                    self._frames.written()
                message = self._frames.next_message()
        except CarrierClosedError as error:
            self._loop.call_soon(self._frames.failed, error)
        except BaseException as error:  # raised by a signal handler: half a frame may have left
            self._loop.call_soon(self._frames.failed, CarrierClosedError(repr(error)))
            raise
        finally:
            if not kept:
                direct.end_writing()

    def _drain(self) -> None:
        """Sends what the socket had no room for, as it gets some; on the loop."""
        if not self._open:
            self._direct.end_writing()
            return
        self._draining = True
        asyncio.get_running_loop().add_writer(self._descriptor, self._writable)

    def _writable(self) -> None:
        try:
            if not self._direct.flush():
                return
        except CarrierClosedError as error:
            self._frames.failed(error)  # which lets go
            return
        self._draining = False
        asyncio.get_running_loop().remove_writer(self._descriptor)
        self._direct.end_writing()
        if self._frames.ending:
            self._frames.written()
        self._write()
