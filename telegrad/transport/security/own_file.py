"""Files of the user of this process alone: the check, and how secrets are read."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from typing import Final

INHERITED: Final = ("/dev/fd/", "/proc/self/fd/")
PIPE_SECONDS = 10.0  # a command that a shell runs for its output may ask a server


def fault_of_file(status: os.stat_result, *, secret: bool) -> str:
    """Returns why a file that was opened is not to be used, in words; empty if it may be.

    Root is no exception: what another user may write is not root's own word.

    Args:
        status: The result of `os.fstat` for the file.
        secret: True if others may not even read the file.
    """
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (uid {status.st_uid}; this one has {os.geteuid()})"
    if status.st_mode & (0o077 if secret else 0o022):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return f"it may be {'used' if secret else 'written'} by others (mode {mode})"
    return ""


class UnfitFileError(PermissionError):
    """A file is not this user's own secret; its words say why, and the remedy."""


def read_secret(path: str | os.PathLike[str], size: int) -> bytes:
    """Reads the beginning of a file that only this user may read; never blocks for long.

    An inherited descriptor (`/dev/fd/N`), which a shell's `<(command)` is, may be a pipe: it is
    read to its end, for at most `PIPE_SECONDS`.

    Raises:
        UnfitFileError: The file belongs to another user, may be read by others, or is no file.
        OSError: The file cannot be read.
    """
    name = os.fspath(path)
    # O_NONBLOCK: to open a FIFO must not wait for its writer.
    with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
        status = os.fstat(file.fileno())
        if name.startswith(INHERITED) and stat.S_ISFIFO(status.st_mode):
            return _read_pipe(file.fileno(), size)
        if fault := fault_of_file(status, secret=True):
            mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            remedy = f"run: chmod 600 {name}" if mine else "name a file of this user's own"
            raise UnfitFileError(errno.EPERM, f"{fault}; {remedy}")
        return file.read(size)


def _read_pipe(descriptor: int, size: int) -> bytes:
    deadline, data = time.monotonic() + PIPE_SECONDS, b""
    while len(data) < size:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError(errno.ETIMEDOUT, f"it did not end within {PIPE_SECONDS:g} s")
        more = os.read(descriptor, size - len(data))
        if not more:
            break
        data += more
    return data
