"""The carrier over a Unix, TCP or TLS socket; by the loop, or directly."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import final

from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.limits import HANDSHAKE_BYTES
from telegrad.transport.sockets.message_buffer import LARGEST
from telegrad.transport.sockets.message_socket import ByteSocket, DirectSocket
from telegrad.transport.sockets.tls_socket import TlsSocket


@final
class SocketCarrier(Carrier):
    """A stream of messages over one socket.

    Args:
        connected: The socket, which does not block; this object closes it.
        description: The address of the other end.
        told: The capabilities of this end, as its carrier.
        trusted: True if the kernel has told who is at the other end: messages of all sizes are
            taken before its proof.
        takes_over: True if it carries no stream of its own, but lanes, and a stream that has moved
            to it.
    """

    direct: DirectSocket

    def __init__(
        self,
        connected: ByteSocket,
        description: str,
        *,
        told: tuple[str, ...] = (),
        trusted: bool = False,
        takes_over: bool = False,
    ) -> None:
        self._tls = connected if isinstance(connected, TlsSocket) else None
        self.description = description
        self.told = told
        self.takes_over = takes_over
        self.direct = DirectSocket(connected, largest=LARGEST if trusted else HANDSHAKE_BYTES)

    async def secure(self) -> None:
        """Does the handshake of TLS, if there is any."""
        while (tls := self._tls) is not None:
            if not self.direct.begin_reading():
                raise CarrierClosedError(f"{self.description} is closed")
            try:
                tls.shake_hands()
                self.binding, self.peer_names = tls.binding, tls.peer_names
                return
            except ssl.SSLWantReadError:
                await self._readable()
            except ssl.SSLWantWriteError:
                await self._writable()
            except OSError as error:
                said = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
                raise CarrierClosedError(f"{self.description}: no TLS ({said})") from error
            finally:
                self.direct.end_reading()

    async def send(self, message: bytes) -> None:
        """Sends one message."""
        below = self.direct
        if not below.begin_writing(wait=False):  # the loop waits for nobody
            raise CarrierClosedError(f"{self.description} is closed, or somebody else writes")
        try:
            left = below.put(message)
            while not left:
                await self._writable()
                left = below.flush()
        finally:
            below.end_writing()

    async def receive(self) -> bytes:
        """Returns the next message."""
        below = self.direct
        if not below.begin_reading():
            raise CarrierClosedError(f"{self.description} is closed")
        try:
            while (message := below.take()) is None:
                await self._readable()
            return message
        finally:
            below.end_reading()

    async def close(self) -> None:
        """Ends the stream at both ends."""
        self.direct.end()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        await self._ready(loop.add_reader, loop.remove_reader)

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        await self._ready(loop.add_writer, loop.remove_writer)

    async def _ready(self, watch: Callable[..., object], unwatch: Callable[[int], object]) -> None:
        """Waits until the loop finds the socket ready; in a role, so that it stays open."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def found() -> None:
            if not ready.done():
                ready.set_result(None)

        descriptor = self.direct.fileno()
        watch(descriptor, found)
        try:
            await ready
        finally:
            unwatch(descriptor)
