"""The identity of a host, and words on its limits.

A host is one boot of a kernel, and one network namespace.

The local transport and the doctor both take it from here, so that they agree on which workers share
a host. Containers with networks of their own have the boot id of their machine, and are hosts of
their own. If they share a network (`docker run --network host`, those of a pod), they are one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
from pathlib import Path
from typing import Final, TypeGuard

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE: Final = Path("/proc/self/ns/net")  # a link to the kind and the inode: net:[4026531840]
CHARACTERS: Final = 16  # of the hash: two hosts of a job will not share them


def has_host_id() -> bool:
    """Returns True if the system identifies its boot, as Linux does."""
    return BOOT_ID.exists()


def read_host_id() -> str:
    """Returns hexadecimal digits that are equal for processes of one host, and for no others.

    Where a process may not read its network namespace, the boot id alone identifies the host.

    Raises:
        OSError: The system has no boot id.
    """
    told = BOOT_ID.read_bytes()
    with contextlib.suppress(OSError):
        told += os.fsencode(os.readlink(NAMESPACE))
    return hashlib.sha256(told).hexdigest()[:CHARACTERS]


def out_of_descriptors(error: BaseException | None) -> TypeGuard[OSError]:
    """Returns True if an error means that this process, or this host, can open no more files."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def spelled(error: BaseException) -> str:
    """Returns an error in words, which name the limit if no more files can be opened.

    >>> spelled(OSError(errno.ENFILE, "Too many open files in system"))
    'OSError: [Errno 23] Too many open files in system; raise fs.file-max of this host'
    """
    words = f"{type(error).__name__}: {error}"
    if not out_of_descriptors(error):
        return words
    if error.errno == errno.ENFILE:
        return f"{words}; raise fs.file-max of this host"
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{words}; `ulimit -n` allows process {os.getpid()} here {limit}: raise it"
