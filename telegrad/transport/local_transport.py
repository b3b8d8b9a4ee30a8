"""The transport between the workers of one user on one host: Unix sockets, and no gRPC.

An endpoint is `local://HOST/path`. HOST is drawn from the machine's boot id, so that a dialler
elsewhere does not look for the path. The socket lies in a directory that nobody but its user may
enter (`unix_socket`); both ends look at who is at the other, too, for which the kernel answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import final

from telegrad.arrays import can_share, gpu_identities
from telegrad.transport.base import Carrier, CarrierClosedError, Direct, Listener, Transport
from telegrad.transport.device_slabs import told_of
from telegrad.transport.direct_socket import DirectSocket
from telegrad.transport.slabs import SLABS
from telegrad.transport.tags import UNTAGGED
from telegrad.transport.unix_socket import (
    check_directory,
    make_path,
    parent_of,
    remove,
    remove_beside,
)

__all__ = ["LOCAL_SCHEME", "LocalTransport", "find_local"]

logger = logging.getLogger(__name__)

LOCAL_SCHEME = "local"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
HOST_CHARACTERS = 16  # of its hash: two machines of a job will not share them
BACKLOG = 128  # that wait in the kernel until the loop takes them
OVERFLOW_UID = 65534  # whom the kernel names for users that this namespace does not know
CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: process, user, group
# A listener whose queue is full refuses for the moment; it takes within a turn of its loop.
RETRY_SECONDS = 0.005
CONNECT_SECONDS = 1.0
PAUSE_SECONDS = 0.1  # before the next is taken, when one could not be


def find_local(*, wanted: bool, certificates: bool, cuda_ipc: bool = False) -> list[LocalTransport]:
    """Returns what reaches the workers of this host without gRPC, if it can be had.

    Args:
        wanted: Whether the user leaves it to the library.
        certificates: Whether workers prove their names by these, which no Unix socket shows.
        cuda_ipc: Whether memory of GPUs is shared with them, where there are any.
    """
    if (why_not := _why_not(wanted=wanted, certificates=certificates)) is None:
        try:
            return [LocalTransport(gpus=_find_gpus() if cuda_ipc else ())]
        except (OSError, ValueError) as error:
            why_not = str(error)
    logger.info("workers on this host are reached over gRPC: %s", why_not)
    return []


def _find_gpus() -> tuple[str, ...]:
    try:
        return gpu_identities()
    except Exception as error:  # CuPy is missing, or its driver, or it says that in another way
        logger.info("no memory of GPUs is shared: %s: %s", type(error).__name__, error)
        return ()


def _why_not(*, wanted: bool, certificates: bool) -> str | None:
    if not wanted:
        return "RpcOptions.local is False"
    if certificates:
        return "certificates prove who workers are, and a Unix socket shows none"
    if not (hasattr(select, "epoll") and hasattr(os, "eventfd")):
        return "that needs Linux's epoll and eventfd"
    if not hasattr(socket, "SO_PEERCRED") or not BOOT_ID.exists():
        return "the system does not tell who is at the other end of a socket"
    return None


@final
class LocalTransport(Transport):
    """Reaches the workers of this user on this host; made off the loop.

    Args:
        directory: Where the socket's own directory is made; by default where this user's are.
        gpus: What tells the GPUs apart of which memory is shared.

    Raises:
        OSError: This machine has no name, or the path of a socket would be too long.
    """

    def __init__(self, directory: str | None = None, *, gpus: Sequence[str] = ()) -> None:
        self._parent = parent_of("unix" if directory is None else f"unix://{directory}")
        self._prefix = f"{LOCAL_SCHEME}://{_host()}/"
        self._told = (UNTAGGED, *((SLABS, *told_of(gpus)) if can_share() else ()))

    @property
    def scheme(self) -> str:
        """Endpoints are `local://HOST/path`."""
        return LOCAL_SCHEME

    def reaches(self, endpoint: str) -> bool:
        """Tells whether an endpoint is on this host."""
        return endpoint.startswith(self._prefix)

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Makes a directory and listens on a socket in it.

        Raises:
            OSError: The directory cannot be made.
        """
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(None, make_path, self._parent)
        return _LocalListener(path, self._prefix + path.lstrip("/"), accept, self._told)

    async def dial(self, endpoint: str) -> Carrier:
        """Connects to a socket of this host.

        Raises:
            ConnectionRefusedError: Nobody listens there: its process is gone.
            ConnectionError: It is of another host, or cannot be reached for another reason.
        """
        if not self.reaches(endpoint):
            raise ConnectionError(f"{endpoint} is on another host")
        path = "/" + endpoint.removeprefix(self._prefix)
        try:
            connected = await _connect(path)
        except ConnectionRefusedError as error:
            raise ConnectionRefusedError(f"nobody listens at {endpoint}") from error
        except ConnectionError:
            raise
        except OSError as error:
            raise ConnectionError(f"{endpoint} cannot be reached: {error}") from error
        return _LocalCarrier(DirectSocket(connected), endpoint, self._told)


def _host() -> str:
    return hashlib.sha256(BOOT_ID.read_bytes()).hexdigest()[:HOST_CHARACTERS]


async def _connect(path: str) -> socket.socket:
    """Returns a connected socket; both ends of it are of this user.

    Raises:
        ConnectionRefusedError: Nobody listens there.
        OSError: It cannot be reached now, or is another user's.
    """
    check_directory(path)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONNECT_SECONDS
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        while True:
            try:
                connected.connect(path)
                break
            except FileNotFoundError as error:
                raise ConnectionRefusedError(f"{path} is gone") from error
            except BlockingIOError:
                if loop.time() > deadline:
                    raise ConnectionError(f"{path} takes no connections") from None
                await asyncio.sleep(RETRY_SECONDS)
        if not _is_own(connected):
            raise PermissionError(f"another user listens at {path}")
    except BaseException:
        connected.close()
        raise
    return connected


def _is_own(connected: socket.socket) -> bool:
    """Whether the kernel says that the other end is this user's."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(told)
    return bool(user == os.geteuid() and user != OVERFLOW_UID)


@final
class _LocalListener(Listener):
    """An open socket; its loop calls it when somebody comes."""

    def __init__(
        self,
        path: str,
        endpoint: str,
        accept: Callable[[Carrier], Awaitable[None]],
        told: tuple[str, ...],
    ) -> None:
        self._path = path
        self._told = told
        self._endpoint = endpoint
        self._accept = accept
        self._accepting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(path)
            self._socket.listen(BACKLOG)
            self._watch()
        except BaseException:
            self._socket.close()
            remove(path)
            raise

    @property
    def endpoint(self) -> str:
        return self._endpoint

    async def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        await remove_beside(self._path)

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._take)

    def _take(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except OSError as error:  # gone again, or too many open files: that would be so again
            logger.debug("a local connection was not taken: %s", error)
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(PAUSE_SECONDS, self._watch)
            return
        if not _is_own(connected):
            logger.warning("another user dialled %s", self._path)
            connected.close()
            return
        below, description = DirectSocket(connected), f"{LOCAL_SCHEME} {self._path}"
        carrier = _LocalCarrier(below, description, self._told)
        task = self._loop.create_task(self._run(carrier))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _run(self, carrier: Carrier) -> None:
        await self._accept(carrier)


@final
class _LocalCarrier(Carrier):
    """A stream over a Unix socket; by the loop, or directly."""

    def __init__(self, below: DirectSocket, description: str, told: tuple[str, ...]) -> None:
        self._below = below
        self._description = description
        self._told = told

    @property
    def description(self) -> str:
        return self._description

    @property
    def told(self) -> tuple[str, ...]:
        return self._told

    @property
    def direct(self) -> Direct:
        return self._below

    async def send(self, message: bytes) -> None:
        loop, below = asyncio.get_running_loop(), self._below
        if not below.begin_writing(wait=False):  # the loop waits for nobody
            raise CarrierClosedError(f"{self._description} is closed, or somebody else writes")
        try:
            left = below.put(message)
            while not left:
                await _ready(below, loop.add_writer, loop.remove_writer)
                left = below.flush()
        finally:
            below.end_writing()

    async def receive(self) -> bytes:
        loop, below = asyncio.get_running_loop(), self._below
        if not below.begin_reading():
            raise CarrierClosedError(f"{self._description} is closed")
        try:
            while (message := below.take()) is None:
                await _ready(below, loop.add_reader, loop.remove_reader)
            return message
        finally:
            below.end_reading()

    async def close(self) -> None:
        self._below.end()


async def _ready(
    below: DirectSocket, watch: Callable[..., object], unwatch: Callable[[int], object]
) -> None:
    """Waits until a loop finds a socket ready."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def found() -> None:
        if not ready.done():
            ready.set_result(None)

    watch(below.fileno(), found)
    try:
        await ready
    finally:
        unwatch(below.fileno())
