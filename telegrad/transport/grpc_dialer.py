"""The dialling end of the gRPC transport: one channel and one stream per carrier."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, final

import grpc
import grpc.aio

from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.grpc_errors import STREAM_ERRORS, closed, unreachable
from telegrad.transport.grpc_operations import Operations
from telegrad.transport.grpc_options import CHANNEL_OPTIONS, METHOD, join_address, split_address

__all__ = ["dial"]

# A host that answers at all answers a connect within a few round trips; one that is down does
# not, and the session has other endpoints and other times to try.
CONNECT_SECONDS = 5.0
# How long the other end may take to end the stream after we ended our half, before it is torn.
CLOSE_SECONDS = 1.0


async def dial(endpoint: str) -> Carrier:
    """Opens a stream to a listener.

    A plain socket goes first: gRPC says UNAVAILABLE both when nobody listens and when a host
    does not answer, and only the former means that the process is gone.

    Raises:
        ConnectionRefusedError: Nobody listens there.
        ConnectionError: It cannot be reached now.
    """
    host, port = split_address(endpoint)
    await _probe(endpoint, host, port)
    channel = grpc.aio.insecure_channel(join_address(host, port), options=CHANNEL_OPTIONS)
    stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await stream.wait_for_connection()
    except TimeoutError as error:
        await channel.close()
        raise ConnectionError(f"{endpoint} does not answer ({CONNECT_SECONDS:g} s)") from error
    except STREAM_ERRORS as error:
        await channel.close()
        await _probe(endpoint, host, port)  # it may have gone since the first
        raise unreachable(endpoint, error) from error
    except asyncio.CancelledError:
        await channel.close()
        raise
    return _DialledCarrier(endpoint, channel, stream)


async def _probe(endpoint: str, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await _connect_any(loop, await _addresses(loop, host, port))
    except TimeoutError as error:
        raise ConnectionError(f"{endpoint} does not answer ({CONNECT_SECONDS:g} s)") from error
    except OSError as error:
        raise unreachable(endpoint, error) from error


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
    """Looks a name up; what is a number already needs none of the loop's threads."""
    with contextlib.suppress(socket.gaierror):
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connect_any(loop: asyncio.AbstractEventLoop, addresses: list[Any]) -> None:
    """Connects to the first address that takes the connection, and hangs up."""
    first: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            probe.setblocking(False)
            try:
                await loop.sock_connect(probe, address)
            except OSError as error:
                first = first or error
            else:
                return
    raise first or OSError("the name has no address")


@final
class _DialledCarrier(Carrier):
    def __init__(
        self,
        endpoint: str,
        channel: grpc.aio.Channel,
        stream: grpc.aio.StreamStreamCall[bytes, bytes],
    ) -> None:
        self._endpoint = endpoint
        self._channel = channel
        self._stream = stream
        self._operations = Operations(endpoint)
        self._closed = asyncio.Event()
        self._reading = False
        self._writing = False

    @property
    def description(self) -> str:
        return self._endpoint

    async def send(self, message: bytes) -> None:
        if self._closed.is_set():
            raise closed(self._endpoint)
        self._writing = True
        try:
            with self._operations.one():
                await self._stream.write(message)
        finally:
            self._writing = False

    async def receive(self) -> bytes:
        if self._closed.is_set():
            raise closed(self._endpoint)
        self._reading = True
        try:
            with self._operations.one():
                message = await self._stream.read()
                if self._closed.is_set():
                    await self._drain()
        finally:
            self._reading = False
        if not isinstance(message, bytes) or self._closed.is_set():  # EOF
            raise closed(self._endpoint)
        return message

    async def close(self) -> None:
        """Ends our half; the listener then ends its own, and only a deaf one is cut off.

        Our half cannot be ended while a write waits for the listener to read: then the time for
        the cut runs from the beginning.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        closing = self._cut_off() if self._writing else None
        with contextlib.suppress(CarrierClosedError), self._operations.one():
            await self._stream.done_writing()
        closing = closing or self._cut_off()
        if not self._reading:
            with contextlib.suppress(CarrierClosedError), self._operations.one():
                await self._drain()
        await closing

    def _cut_off(self) -> asyncio.Future[None]:
        closing = asyncio.ensure_future(self._channel.close(CLOSE_SECONDS))
        closing.add_done_callback(lambda _: self._operations.abandon())
        return closing

    async def _drain(self) -> None:
        """Reads what nobody wants any more: before that gRPC does not see the end behind it."""
        while isinstance(await self._stream.read(), bytes):
            pass
