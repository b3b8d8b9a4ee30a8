"""A TCP socket that bypasses gRPC: on the loop while it proves itself, then moved by threads.

A lane has two threads that block (`put`, `fill`); a stream is moved by the threads that post or
wait (`message_socket`).

    message = size (4 bytes) | that many bytes

This is the same as over Unix sockets. Before the proof no message may be larger than one of a
handshake, and nothing is read beyond the message that is asked for: the bytes after it are for the
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, TypeAlias, final

from telegrad.transport.base import Carrier, CarrierClosedError, Listener, Transport
from telegrad.transport.grpc.dialer import connect
from telegrad.transport.grpc.options import (
    SCHEME,
    TLS_SCHEME,
    is_loopback,
    join_address,
    split_address,
)
from telegrad.transport.security.handshake import MAX_HANDSHAKE_BYTES
from telegrad.transport.sockets.message_socket import DirectSocket, header_of
from telegrad.wire import Buffer

__all__ = [
    "BULK_SCHEME",
    "MOVES_TOLD",
    "SIZE_BYTES",
    "BulkSocket",
    "BulkSockets",
    "bulk_endpoint",
]


SIZE_BYTES = len(header_of(b""))


@final
class BulkSocket(Carrier):
    """One connected TCP socket; the descriptor is closed when nobody uses it any more.

    Args:
        connected: The socket; this object closes it.
        description: The address of the other end.
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
        """The address of the other end."""
        return self._description

    @property
    def is_loopback(self) -> bool:
        """True if the other end is on this machine."""
        return self._is_loopback

    @property
    def blocking(self) -> BulkSocket:
        """This socket itself."""
        return self

    @property
    def direct(self) -> DirectSocket | None:
        """The object that moves its messages, once it is a stream and no lane."""
        return self._direct

    # On the loop, before it has proved itself.

    async def send(self, message: bytes) -> None:
        """Sends a message of a handshake."""
        loop = asyncio.get_running_loop()
        with self._used():
            await loop.sock_sendall(self._socket, header_of(message) + message)

    async def receive(self) -> bytes:
        """Receives a message of a handshake, and nothing after it."""
        size = int.from_bytes(await self._exactly(SIZE_BYTES), "big")
        if size > MAX_HANDSHAKE_BYTES:
            raise CarrierClosedError(f"{size} bytes before any proof")
        return await self._exactly(size)

    async def close(self) -> None:
        """Ends it at both ends, and wakes threads that wait for it; idempotent, never raises."""
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
            CarrierClosedError: The socket ended.
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
            CarrierClosedError: The socket ended before that.
        """
        with self._used():
            while place:
                came = self._socket.recv_into(place, len(place), socket.MSG_WAITALL)
                if not came:
                    raise CarrierClosedError(f"{self._description} was closed")
                place = place[came:]

    def end(self) -> None:
        """Ends it at both ends, and wakes threads that wait for it; idempotent, never raises."""
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
        """Stands around each use: the descriptor must not come to stand for another file."""
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
        """Closes the descriptor, unless the socket is used. Holds the lock."""
        if self._closed and not self._users:
            self._socket.close()


# -- lanes over TCP sockets of their own, beside streams over gRPC: where both workers allow it --
#
# The listener gives its port in its hello (`bulk-port=41233` among the capabilities), which the
# proof covers. The worker that dialled the control stream dials that port at the same host. Nothing
# is published, and nothing is taken but a lane of a stream, or a carrier that takes the place of
# one (`moving`).

logger = logging.getLogger(__name__)

Accept: TypeAlias = Callable[[Carrier], Awaitable[None]]

BULK_SCHEME: Final = "bulk"
PORT_TOLD: Final = "bulk-port="
MOVES_TOLD: Final = "bulk-frames"
HIGHEST_PORT: Final = 65535
BACKLOG = 128  # connections that wait in the kernel until the loop takes them
PAUSE_SECONDS = 0.1  # before the next connection is taken, after one could not be


def bulk_endpoint(endpoint: str, capabilities: Iterable[str]) -> str:
    """Returns the endpoint at which a listener takes lanes over sockets; empty where it does not.

    >>> bulk_endpoint("grpcs://[fd00::2]:29500", ["bulk-port=41233"])
    'bulk://[fd00::2]:41233'
    >>> bulk_endpoint("grpc://10.0.0.5:29500", []), bulk_endpoint("inproc://7", ["bulk-port=1"])
    ('', '')

    Args:
        endpoint: The endpoint at which it was dialled.
        capabilities: The capabilities in its hello.
    """
    if endpoint.partition("://")[0] not in (SCHEME, TLS_SCHEME):
        return ""
    host, _ = split_address(endpoint)
    for told in capabilities:
        port = told.removeprefix(PORT_TOLD)
        if told.startswith(PORT_TOLD) and port.isdecimal() and 0 < int(port) <= HIGHEST_PORT:
            return f"{BULK_SCHEME}://{join_address(host, int(port))}"
    return ""


@final
class BulkSockets(Transport):
    """Opens and dials sockets for lanes; for one exchange.

    Args:
        port: The port on which it listens; 0 lets the kernel choose.
        bind: Returns the address to listen on, as a number; None for nowhere. Asked once, when the
            exchange begins to listen.
        frames: True if streams move to them, and not their lanes alone.
    """

    def __init__(self, port: int, bind: Callable[[], str | None], *, frames: bool = True) -> None:
        self._port = port
        self._frames = frames
        self._bind = bind
        self._told: tuple[str, ...] = ()

    @property
    def scheme(self) -> str:
        """Endpoints are `bulk://host:port`; they are never published."""
        return BULK_SCHEME

    @property
    def told(self) -> tuple[str, ...]:
        """The port, once there is one, and the capability to take frames there."""
        return self._told

    @property
    def takes_frames(self) -> bool:
        """True if streams move there."""
        return self._frames

    async def listen(self, accept: Accept) -> Listener:
        """Opens the port.

        Raises:
            OSError: The port is taken, or the address is not of this machine.
        """
        bind = self._bind()
        if bind is None:
            return _Nowhere()
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setblocking(False)
            opened.bind((bind, self._port))
            opened.listen(BACKLOG)
        except OSError as error:
            opened.close()
            raise OSError(
                error.errno,
                f"cannot listen on {bind}:{self._port} ({error.strerror}); another process may use "
                "the port: name a free one in RpcOptions.bulk_port, or 0 to let the kernel choose",
            ) from error
        port = f"{PORT_TOLD}{opened.getsockname()[1]}"
        self._told = (port, MOVES_TOLD) if self._frames else (port,)
        return _BulkListener(opened, accept)

    async def dial(self, endpoint: str) -> Carrier:
        """Connects; see `Transport.dial`."""
        scheme, _, address = endpoint.partition("://")
        if scheme != BULK_SCHEME:
            raise ConnectionError(f"{endpoint!r} is no endpoint of lanes")
        host, port = split_address(f"{SCHEME}://{address}")
        connected = await connect(endpoint, host, port)
        try:
            return BulkSocket(connected, endpoint)
        except OSError as error:  # the listener has gone again
            connected.close()
            raise ConnectionError(f"{endpoint} hangs up at once: {error}") from error


@final
class _Nowhere(Listener):
    """The listener of a worker that opens no TCP port."""

    @property
    def endpoint(self) -> str:
        return ""

    async def close(self) -> None:
        pass


@final
class _BulkListener(Listener):
    """An open port; its loop calls it when a connection arrives."""

    def __init__(self, opened: socket.socket, accept: Accept) -> None:
        self._socket = opened
        self._accept = accept
        self._accepting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._watch()

    @property
    def endpoint(self) -> str:
        """The empty string: a dialler is told the port in a hello."""
        return ""

    async def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._take)

    def _take(self) -> None:
        try:
            connected, address = self._socket.accept()
        except OSError as error:  # gone again, or too many open files: that would happen again
            logger.debug("a connection for a lane was not taken: %s", error)
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(PAUSE_SECONDS, self._watch)
            return
        try:
            carrier = BulkSocket(connected, f"{BULK_SCHEME} {join_address(*address[:2])}")
        except OSError:  # the peer has gone again
            connected.close()
            return
        task = self._loop.create_task(self._run(carrier))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _run(self, carrier: Carrier) -> None:
        await self._accept(carrier)
