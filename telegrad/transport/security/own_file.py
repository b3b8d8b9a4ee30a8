"""The check that a file belongs to the user of this process, before its content is believed."""

from __future__ import annotations

import os
import stat

__all__ = ["fault_of_file"]


def fault_of_file(status: os.stat_result, *, secret: bool) -> str:
    """Returns why a file that was opened is not to be used, in words; empty if it may be.

    Root is no exception: what another user may write is not root's own word.

    Args:
        status: What `os.fstat` says of the file.
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
