"""The transport between the workers of one user on one host: Unix sockets, and no gRPC.

An endpoint is `local://HOST/path`. HOST identifies the host (`transport/host.py`), so that diallers
elsewhere do not look for the path. The socket lies in a directory that nobody but its user may
enter (`message_socket`). Both ends also check the user at the other end, for whom the kernel
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import shutil
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
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

# -- unix sockets: the place of one, its possible paths, and the reasons for a dialler to trust it
# --
#
# Each listener makes a directory of its own that nobody but its user may enter, and its socket in
# it. So no two listeners ever meet at one path, and the remains of a process that was killed are in
# nobody's way. The job's launcher removes them, or else the next listener. A dialler checks the
# directory: a socket in another user's directory, or in one that others may write to, may be
# anybody's.

UNIX = "unix"  # the beginning of the `bind` of a worker that listens on Unix sockets alone
PREFIX, NAME = "telegrad-", "s"
RANDOM_CHARACTERS = 8  # of the names of `tempfile.mkdtemp`
LONGEST_PATH = 107  # bytes: sockaddr_un has 108, and the last one is zero
# A peer's listener takes connections from a queue of the kernel, so connecting does not wait.
CONNECT_SECONDS = 1.0
# A socket that refuses may have an owner that is just about to listen; not after so long.
STALE_SECONDS = 60.0


def is_unix(bind: str | None) -> bool:
    """Returns True if an address to listen on is a Unix socket.

    >>> is_unix("unix"), is_unix("unix:///run/me"), is_unix("::1")
    (True, True, False)
    """
    return bind is not None and bind.partition(":")[0] == UNIX


def parent_of(bind: str) -> str:
    """Returns the directory in which `bind="unix"` or `bind="unix:///directory"` makes its own.

    >>> parent_of("unix:///run/me")
    '/run/me'

    Raises:
        ValueError: The text is neither, or the path of a socket in it would be too long.
    """
    if bind == UNIX:
        parent = _own_directory()
    else:
        scheme, _, parent = bind.partition("://")
        if scheme != UNIX or not parent.startswith("/"):
            raise ValueError(
                f"bind={bind!r} is not known; write 'unix', or 'unix:///directory' with the whole "
                "path of a directory"
            )
    if (size := _longest_path(parent)) > LONGEST_PATH:
        raise ValueError(
            f"a Unix socket in {parent!r} would have a path of {size} bytes, and the system takes "
            f"{LONGEST_PATH}; name a shorter directory, for instance bind='unix:///tmp'"
        )
    return parent


def make_path(parent: str) -> str:
    """Makes a fresh directory, with mode 0700; returns the path for a socket in it.

    Raises:
        OSError: The directory cannot be made; the message has the remedy.
    """
    with contextlib.suppress(OSError):
        for directory in _stale(parent):
            remove(os.path.join(directory, NAME))
    try:
        return os.path.join(tempfile.mkdtemp(prefix=PREFIX, dir=parent), NAME)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot make a Unix socket in {parent!r} ({error.strerror}); name another directory, "
            "for instance bind='unix:///tmp'",
        ) from error


def remove(path: str) -> None:
    """Removes a socket and its directory, if they are there."""
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


async def remove_beside(path: str) -> None:
    """Removes a socket and its directory in a thread beside the loop."""
    await asyncio.get_running_loop().run_in_executor(None, remove, path)


def _stale(parent: str) -> Iterator[str]:
    """Finds directories of this user's whose listener is gone: it was killed.

    Directories that the kernel lists are not probed; it lists none of another network namespace.
    """
    before, known = time.time() - STALE_SECONDS, _bound()
    with os.scandir(parent) as entries:
        for entry in entries:
            if (
                not entry.name.startswith(PREFIX)
                or entry.stat(follow_symlinks=False).st_mtime > before
            ):
                continue
            path = os.path.join(entry.path, NAME)
            with contextlib.suppress(OSError):
                if path in known or not stat.S_ISSOCK(os.lstat(path).st_mode):
                    continue
                check_directory(path)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.settimeout(CONNECT_SECONDS)
                    refused = probe.connect_ex(path) == errno.ECONNREFUSED
                if refused:
                    yield entry.path


def _bound() -> set[str]:
    """Returns the paths that are bound in this network namespace, where the system lists them."""
    try:
        with open("/proc/net/unix", errors="surrogateescape") as lines:
            return {line.split()[-1] for line in lines}
    except OSError:
        return set()


def check_directory(path: str) -> None:
    """Checks that nobody but this user can have made the socket at a path.

    Raises:
        ConnectionRefusedError: Its directory is gone, and so is the listener.
        PermissionError: The directory is another user's, or others may write to it.
    """
    directory = os.path.dirname(path)
    try:
        status = os.lstat(directory)
    except FileNotFoundError as error:
        raise ConnectionRefusedError(f"{directory} is gone") from error
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        if not status.st_mode & 0o077:
            return
        raise PermissionError(f"others may use {directory} (mode {status.st_mode & 0o777:04o})")
    raise PermissionError(f"{directory} is no directory of this user's; start all workers as one")


def _own_directory() -> str:
    """Returns the directory of this user's sockets: under `telegrad run` the job's.

    The launcher removes the job's directory at the end, with the sockets of the workers that it
    killed. A directory whose sockets would have too long a path is passed over.
    """
    for name in ("TELEGRAD_SOCKETS", "XDG_RUNTIME_DIR"):
        directory = os.environ.get(name, "")
        if os.path.isdir(directory) and _longest_path(directory) <= LONGEST_PATH:
            return directory
    return tempfile.gettempdir()


def _longest_path(parent: str) -> int:
    """Returns the number of bytes that the path of a socket in a directory may have."""
    return len(os.fsencode(os.path.join(parent, PREFIX + "x" * RANDOM_CHARACTERS, NAME)))


# ------------------------------------------------------------------------------------------------

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
