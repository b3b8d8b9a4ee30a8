"""The paths of Unix sockets: the place of one, and the reasons for a dialler to trust it.

Each listener makes a directory of its own that nobody but its user may enter, and its socket in
it. So no two listeners ever meet at one path, and the remains of a process that was killed are in
nobody's way. The job's launcher removes them, or else the next listener. A dialler checks the
directory: a socket in another user's directory, or in one that others may write to, may be
anybody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator

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
