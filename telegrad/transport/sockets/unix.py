"""The transport between the workers of one user on one host: Unix sockets, and no gRPC.

An endpoint is `local://HOST/path`. HOST identifies the host (`transport/host.py`), so that diallers
elsewhere do not look for the path. The socket lies in a directory that nobody but its user may
enter (`unix_path`). Both ends also check the user at the other end, for whom the kernel
answers.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import final

from telegrad.arrays import can_share, gpu_identities
from telegrad.transport.base import Carrier, Listener, Transport
from telegrad.transport.channels.device_memory import told_of
from telegrad.transport.channels.shared_memory import SLABS
from telegrad.transport.host import can_read_directly, read_host_id, spelled, tells_peer
from telegrad.transport.log import get_logger
from telegrad.transport.security.tags import UNTAGGED
from telegrad.transport.security.tls import Tls
from telegrad.transport.sockets.socket_carrier import SocketCarrier
from telegrad.transport.sockets.socket_listener import BACKLOG, SocketListener
from telegrad.transport.sockets.unix_path import (
    CONNECT_SECONDS,
    UNIX,
    check_directory,
    is_unix,
    make_path,
    parent_of,
    remove,
    remove_beside,
)

logger = get_logger(__name__)

LOCAL_SCHEME = "local"
OVERFLOW_UID = 65534  # the kernel's id for users that this namespace does not know
CREDENTIALS = struct.Struct("3i")  # the layout of SO_PEERCRED: process, user, group
# Bytes that a socket takes before its reader does, at most net.core.wmem_max; they cost memory only
# while they are unread. The kernel's default holds three messages of 64 KiB: a stage of a pipeline
# that is ahead of the next one leaves the others to the loops of both workers, which run 30
# functions more for each.
SEND_BYTES = 2**20
# A listener whose queue is full refuses for the moment; it takes within a turn of its loop.
RETRY_SECONDS = 0.005


def find_local(
    tls: Tls | None, *, wanted: bool = True, bind: str | None = None, cuda_ipc: bool = False
) -> list[LocalTransport]:
    """Returns the transport that reaches this host's workers without gRPC, in a list; or none.

    Args:
        tls: The certificates by which workers prove their names, which no Unix socket shows.
        wanted: True if the user leaves it to the library.
        bind: The user's choice of an address to listen on. If it is a Unix socket, there is no
            other way to this worker.
        cuda_ipc: True if memory of GPUs is shared with them, where there are any.

    Raises:
        ValueError: `bind` is a Unix socket, and it is malformed, or there can be none.
        OSError: `bind` is a Unix socket, and this machine has no name.
    """
    why_not = _why_not(wanted=wanted, certificates=tls is not None)
    gpus = _find_gpus() if cuda_ipc and why_not is None else ()
    if bind is not None and is_unix(bind):
        if why_not is not None:
            raise ValueError(
                f"bind={bind!r} is refused, since {why_not}; leave bind out, for a TCP port on "
                "loopback"
            )
        return [LocalTransport(bind, gpus=gpus)]
    if why_not is None:
        try:
            return [LocalTransport(gpus=gpus)]
        except (OSError, ValueError) as error:
            why_not = str(error)
    logger.info("workers on this host are reached over gRPC: %s", why_not)
    return []


def _find_gpus() -> tuple[str, ...]:
    try:
        return gpu_identities()
    except Exception as error:  # CuPy is missing, or its driver, or it reports that in another way
        logger.info("no memory of GPUs is shared: %s: %s", type(error).__name__, error)
        return ()


def _why_not(*, wanted: bool, certificates: bool) -> str | None:
    if not wanted:
        return "RpcOptions.direct leaves Unix sockets out"
    if certificates:
        return "certificates prove who workers are, and a Unix socket shows none"
    if not can_read_directly():
        return "that needs Linux's epoll and eventfd"
    if not tells_peer():
        return "the system does not tell who is at the other end of a socket"
    return None


@final
class LocalTransport(Transport):
    """Reaches the workers of this user on this host; made off the loop.

    Endpoints are `local://HOST/path`.

    Args:
        bind: `unix`, or `unix:///directory`, in which each listener makes a directory of its own.
        gpus: The identities of the GPUs whose memory is shared.

    Raises:
        OSError: This machine has no name.
        ValueError: `bind` is neither, or the path of a socket would be too long.
    """

    scheme = LOCAL_SCHEME
    schemes = frozenset({LOCAL_SCHEME})

    def __init__(self, bind: str = UNIX, *, gpus: Sequence[str] = ()) -> None:
        self._parent = parent_of(bind)
        self._prefix = f"{LOCAL_SCHEME}://{read_host_id()}/"
        self._told = (UNTAGGED, *((SLABS, *told_of(gpus)) if can_share() else ()))

    def reaches(self, endpoint: str) -> bool:
        """Returns True if an endpoint is on this host."""
        return endpoint.startswith(self._prefix)

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Makes a directory and listens on a socket in it.

        Raises:
            OSError: The directory cannot be made.
        """
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(None, make_path, self._parent)
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.bind(path)
            opened.listen(BACKLOG)
            carry = functools.partial(self._accepted, path)
            endpoint = self._prefix + path.lstrip("/")
            return SocketListener(opened, endpoint, accept, carry, lambda: remove_beside(path))
        except BaseException:
            opened.close()
            remove(path)
            raise

    def _accepted(self, path: str, connected: socket.socket, _: object) -> Carrier:
        """Returns the carrier of a connection that was accepted."""
        if not _is_own(connected):
            logger.warning("another user dialled %s", path)
            raise PermissionError(f"another user dialled {path}")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        described = f"{LOCAL_SCHEME} {path}"
        return SocketCarrier(connected, described, told=self._told, trusted=True)

    async def dial(self, endpoint: str) -> Carrier:
        """Connects to a socket of this host.

        Raises:
            ConnectionRefusedError: Nobody listens there: its process is gone.
            ConnectionError: The socket is of another host, or cannot be reached for another reason.
        """
        if not self.reaches(endpoint):
            raise ConnectionError(
                f"{endpoint} is on another host, or in another network namespace of this one"
            )
        path = "/" + endpoint.removeprefix(self._prefix)
        try:
            connected = await _connect(path)
        except ConnectionRefusedError as error:
            raise ConnectionRefusedError(f"nobody listens at {endpoint} ({error})") from error
        except ConnectionError:
            raise
        except OSError as error:
            raise ConnectionError(f"{endpoint} cannot be reached: {spelled(error)}") from error
        return SocketCarrier(connected, endpoint, told=self._told, trusted=True)


async def _connect(path: str) -> socket.socket:
    """Returns a connected socket; both ends of it are of this user.

    Raises:
        ConnectionRefusedError: Nobody listens there.
        OSError: The socket cannot be reached now, or is another user's.
    """
    check_directory(path)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONNECT_SECONDS
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
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
    """Returns True if the kernel says that the other end is this user's."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(told)
    return bool(user == os.geteuid() and user != OVERFLOW_UID)
