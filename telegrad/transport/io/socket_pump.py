"""Moving the frames of one direct socket: the posting thread writes, the socket's reader reads.

The posting thread writes at once as much as the socket has room for; the loop sends the rest. The
messages of a burst are written together (`burst`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from threading import get_ident
from typing import final

from telegrad.critical import critical
from telegrad.transport.base import CarrierClosedError, Direct
from telegrad.transport.host import spelled
from telegrad.transport.io.pump import READ_ERRORS, Pump, StreamEnd
from telegrad.transport.io.shield import MAIN, Shield
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.transport.loop import LoopThread

RESUME_SECONDS = 0.001  # until another thread has written
BATCH = 64  # messages of one stream that are read before the others have their turn


@final
class SocketPump(Pump):
    """Moves the messages of one stream.

    Args:
        loop: The loop that sends bytes for which a socket had no room.

    Raises:
        CarrierClosedError: The stream has ended here already.
    """

    def __init__(
        self, direct: Direct, frames: StreamEnd, loop: LoopThread, reader: SocketReader
    ) -> None:
        if (descriptor := direct.fileno()) < 0:
            raise CarrierClosedError("the local stream was closed before it was used")
        self._descriptor = descriptor
        self._direct = direct
        self._frames = frames
        self._loop = loop
        self._reader = reader
        self._open = True  # this and the next are for the loop alone
        self._draining = False

    # On the loop.

    def start(self, preamble: bytes) -> None:
        """Adds the socket to the reader, and writes the messages that wait.

        Raises:
            CarrierClosedError: No more descriptors can be had to watch the socket.
        """
        try:
            self._reader.add(self._descriptor, self)
        except OSError as error:
            # Out of descriptors, for instance. An OSError would end the task of the transport
            # alone, and both ends would wait for each other until a time-out.
            raise CarrierClosedError(f"a socket cannot be watched ({spelled(error)})") from error
        self._write(preamble)
        # Bytes that came behind the handshake are in the buffer of the socket's object.
        self._loop.call_soon(self.read)

    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Ends the stream, behind a last message if the socket has room for it. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._reader.remove(self._descriptor)
        # The turn that `_drain` took over is the loop's: nobody else gives it back.
        if self._draining:
            self._draining = False
            asyncio.get_running_loop().remove_writer(self._descriptor)
            self._direct.end_writing()
        elif farewell is not None and self._direct.begin_writing(wait=False):
            with contextlib.suppress(CarrierClosedError):
                self._direct.put(farewell())
            self._direct.end_writing()
        self._direct.end()

    def resume(self) -> None:
        """Writes what waits, though the loop has no turn, unless others write."""
        if self._open and not self._draining and not self._write(wait=False):
            self._loop.loop.call_later(RESUME_SECONDS, self.resume)

    # From any thread.

    def wake(self) -> None:
        """Writes here, or leaves the messages of a burst to be written together."""
        if not self._reader.bursts.takes(self._write):
            self._write()

    # In the thread that has the reader's role.

    def read(self) -> int:
        """Reads arrived messages, unless another thread does.

        Returns:
            The number of messages that brought requests.
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
                    return requests  # if there is more, the next thread that polls is told
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
        """Ends the stream on the loop; in the reader's role, so that the descriptor is open."""
        self._reader.stop(self._descriptor)
        self._loop.call_soon(self._frames.failed, error)

    # In the thread that has the writer's turn.

    def _write(self, preamble: bytes = b"", *, wait: bool = True) -> bool:
        """Writes until nothing is left.

        Args:
            preamble: The bytes to send before the first frame.
            wait: False to leave it to another thread that writes now.

        Returns:
            False if the stream has ended here, or another thread writes; nothing was written then.
        """
        direct, kept = self._direct, False
        # Code that interrupts this thread may take the turn again, and would wait for its role; a
        # handler of a signal that raises would break a message off.
        shielded = get_ident() not in MAIN or critical.role._is_owned()
        with critical.section if shielded else Shield(), critical.section:
            if not direct.begin_writing(wait=wait):
                return False  # if the stream has ended, the next one begins with the turn
            try:
                message: bytes | None = preamble or self._frames.next_message()
                while message is not None:
                    # The turn stays taken while the rest of a message waits for room: else the next
                    # message would come before that rest. The loop gives it back.
                    kept = not direct.put(message)
                    if kept:
                        self._loop.call_soon(self._drain)
                        return True
                    if self._frames.ending:
                        self._frames.written()
                    message = self._frames.next_message()
            except CarrierClosedError as error:
                self._loop.call_soon(self._frames.failed, error)
            except BaseException as error:  # a signal handler's: half a frame may have left
                self._loop.call_soon(self._frames.failed, CarrierClosedError(repr(error)))
                raise
            finally:
                if not kept:
                    direct.end_writing()
        return True

    def _drain(self) -> None:
        """Sends bytes for which the socket had no room, as it gets room; on the loop."""
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
            self._frames.failed(error)  # this lets go of the stream
            return
        self._draining = False
        asyncio.get_running_loop().remove_writer(self._descriptor)
        self._direct.end_writing()
        if self._frames.ending:
            self._frames.written()
        self._write()
