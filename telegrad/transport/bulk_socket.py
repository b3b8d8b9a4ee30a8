"""A TCP socket past gRPC: on the loop while it proves itself, then moved by threads.

A lane has two that block (`put`, `fill`); a stream whoever posts or waits (`direct_socket`).

    message = size (4 bytes) | that many bytes

as over Unix sockets. Before the proof no message may be larger than one of a handshake, and nothing
is read beyond the one that is asked for: what follows is for the threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import final

from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.direct_socket import DirectSocket
from telegrad.transport.grpc_options import is_loopback
from telegrad.transport.handshake import MAX_HANDSHAKE_BYTES
from telegrad.transport.message_buffer import header_of
from telegrad.wire import Buffer

__all__ = ["SIZE_BYTES", "BulkSocket"]

SIZE_BYTES = len(header_of(b""))


@final
class BulkSocket(Carrier):
    """One connected TCP socket; the descriptor is closed when nobody uses it any more.

    Args:
        connected: The socket; this object closes it.
        description: Where the other end is.
    """

    def __init__(self, connected: socket.socket, description: str) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._description = description
        self._is_loopback = is_loopback(str(connected.getpeername()[0]))
        self._direct: DirectSocket | None = None
        self._users_lock = threading.Lock()  # guards the next two
        self._users = 0
        self._closed = False

    @property
    def description(self) -> str:
        """Where the other end is."""
        return self._description

    @property
    def is_loopback(self) -> bool:
        """Whether the other end is on this machine."""
        return self._is_loopback

    @property
    def blocking(self) -> BulkSocket:
        """Itself."""
        return self

    @property
    def direct(self) -> DirectSocket | None:
        """What moves its messages, once it is a stream and no lane."""
        return self._direct

    # On the loop, before it has proved itself.

    async def send(self, message: bytes) -> None:
        """Sends a message of a handshake."""
        loop = asyncio.get_running_loop()
        with self._used():
            await loop.sock_sendall(self._socket, header_of(message) + message)

    async def receive(self) -> bytes:
        """Receives a message of a handshake, and nothing behind it."""
        size = int.from_bytes(await self._exactly(SIZE_BYTES), "big")
        if size > MAX_HANDSHAKE_BYTES:
            raise CarrierClosedError(f"{size} bytes before any proof")
        return await self._exactly(size)

    async def close(self) -> None:
        """Ends it at both ends, and wakes who waits for it; idempotent, never raises."""
        self.end()

    async def _exactly(self, size: int) -> bytes:
        loop, message = asyncio.get_running_loop(), bytearray(size)
        view = memoryview(message)
        with self._used():
            while view:
                came = await loop.sock_recv_into(self._socket, view)
                if not came:
                    raise CarrierClosedError(f"{self._description} was closed")
                view = view[came:]
        return bytes(message)

    # In any thread, afterwards: one sends and one receives.

    def begin_blocking(self) -> None:
        """Leaves the loop: from now on `put` and `fill` move its bytes."""
        with self._used():
            self._socket.setblocking(True)

    def begin_direct(self) -> None:
        """Leaves the loop: from now on `direct` moves its messages, and closes the descriptor."""
        with self._used():
            self._direct = DirectSocket(self._socket)

    def put(self, *parts: Buffer) -> None:
        """Sends bytes; blocks until the system has taken all of them.

        Raises:
            CarrierClosedError: It ended.
        """
        left = [memoryview(part).cast("B") for part in parts]
        with self._used():
            while left:
                sent = self._socket.sendmsg(left)
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = left[0][sent:]

    def fill(self, place: memoryview) -> None:
        """Fills a place with the next bytes; blocks until they are all there.

        Raises:
            CarrierClosedError: It ended before that.
        """
        with self._used():
            while place:
                came = self._socket.recv_into(place, len(place), socket.MSG_WAITALL)
                if not came:
                    raise CarrierClosedError(f"{self._description} was closed")
                place = place[came:]

    def end(self) -> None:
        """Ends it at both ends, and wakes who waits for it; idempotent, never raises."""
        if self._direct is not None:
            self._direct.end()
            return
        with self._users_lock:
            if not self._closed:
                self._closed = True
                with contextlib.suppress(OSError):  # the other end was first
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._close_if_unused()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Stands around each use: the descriptor must not come to stand for something else."""
        with self._users_lock:
            if self._closed:
                raise CarrierClosedError(f"{self._description} is closed")
            self._users += 1
        try:
            yield
        except CarrierClosedError:
            raise
        except OSError as error:
            raise CarrierClosedError(f"{self._description} ended: {error}") from error
        finally:
            with self._users_lock:
                self._users -= 1
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Holds the lock."""
        if self._closed and not self._users:
            self._socket.close()
