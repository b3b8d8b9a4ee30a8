"""Unix sockets: where one is made, what path it may have, and whether a dialler may trust it.

Each listener makes a directory of its own that nobody but its user may enter, and its socket in
it. So no two listeners ever meet at one path, and what a process that was killed has left behind
stands in nobody's way; the next listener takes it away. A dialler looks at the directory: what lies in another user's, or in one that
others may write to, may be anybody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator

__all__ = [
    "UNIX_SCHEME",
    "check_directory",
    "connect",
    "make_path",
    "parent_of",
    "path_of",
    "remove",
    "remove_beside",
]

UNIX_SCHEME = "unix"
PREFIX, NAME = "telegrad-", "s"
RANDOM_CHARACTERS = 8  # of `tempfile.mkdtemp`
LONGEST_PATH = 107  # bytes: sockaddr_un has 108, and the last one is zero
# A peer's listener takes connections from a queue of the kernel, so that connecting does not wait.
CONNECT_SECONDS = 1.0
# A socket that refuses may be one whose owner is just about to listen; not after so long.
STALE_SECONDS = 60.0


def path_of(endpoint: str) -> str:
    """Returns the path of `unix:///path`.

    >>> path_of("unix:///run/user/1000/telegrad-x/s")
    '/run/user/1000/telegrad-x/s'

    Raises:
        ConnectionError: It is no such endpoint.
    """
    scheme, _, path = endpoint.partition("://")
    if scheme != UNIX_SCHEME or not path.startswith("/"):
        raise ConnectionError(f"{endpoint!r} is no endpoint; write unix:///path")
    return path


def parent_of(bind: str) -> str:
    """Returns the directory in which `bind="unix"` or `bind="unix:///directory"` makes its own.

    >>> parent_of("unix:///run/me")
    '/run/me'

    Raises:
        ValueError: It is neither, or the path of a socket in it would be too long.
    """
    if bind == UNIX_SCHEME:
        parent = _own_directory()
    else:
        scheme, _, parent = bind.partition("://")
        if scheme != UNIX_SCHEME or not parent.startswith("/"):
            raise ValueError(
                f"bind={bind!r} is not known; write 'unix', or 'unix:///directory' with the whole "
                "path of a directory"
            )
    longest = os.path.join(parent, PREFIX + "x" * RANDOM_CHARACTERS, NAME)
    size = len(os.fsencode(longest))
    if size > LONGEST_PATH:
        raise ValueError(
            f"a Unix socket in {parent!r} would have a path of {size} bytes, and the system takes "
            f"{LONGEST_PATH}; name a shorter directory, for instance bind='unix:///tmp'"
        )
    return parent


def make_path(parent: str) -> str:
    """Makes a fresh directory, with mode 0700; returns the path for a socket in it.

    Raises:
        OSError: It cannot be made; says the remedy.
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
    """Removes them in another thread than the loop's, while there are any."""
    try:
        await asyncio.get_running_loop().run_in_executor(None, remove, path)
    except RuntimeError:  # the interpreter ends, and with it the executors
        remove(path)


def _stale(parent: str) -> Iterator[str]:
    """Finds directories of this user's whose listener is gone: it was killed.

    Those that the kernel knows are spared the knock; it names none of another network namespace.
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
                try:
                    connect(path)
                except ConnectionRefusedError:
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
        ConnectionRefusedError: Its directory is gone, and so is who listened there.
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


def connect(path: str) -> None:
    """Connects, and hangs up.

    Raises:
        ConnectionRefusedError: Nobody listens there: the socket is gone, or left by a process that is.
        OSError: It cannot be reached now.
    """
    check_directory(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(path)
        except FileNotFoundError as error:
            raise ConnectionRefusedError(f"{path} is gone") from error


def _own_directory() -> str:
    """Returns where this user's sockets belong."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return runtime if os.path.isdir(runtime) else tempfile.gettempdir()
