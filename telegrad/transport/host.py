"""The identity of a host, what its system offers, and words on its limits.

A host is one boot of a kernel, and one network namespace.

The local transport and the doctor both take it from here, so that they agree on which workers share
a host. Containers with networks of their own have the boot id of their machine, and are hosts of
their own. If they share a network (`docker run --network host`, those of a pod), they are one.

Parts that only some systems have are asked for here. Where they are missing, workers use gRPC.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import select
import socket
import threading
import time
from pathlib import Path
from typing import Final, TypeGuard

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE: Final = Path("/proc/self/ns/net")  # a link to the kind and the inode: net:[4026531840]
LOOK_SECONDS: Final = 0.1
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


def cores() -> int:
    """Returns the number of cores that this process may use, or where that is unknown, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def can_read_directly() -> bool:
    """Returns True if threads can read sockets without the loop: on Linux (epoll and eventfd)."""
    return hasattr(select, "epoll") and hasattr(os, "eventfd")


def tells_peer() -> bool:
    """Returns True if the system tells whose process is at the other end of a Unix socket."""
    return hasattr(socket, "SO_PEERCRED") and has_host_id()


def open_process(pid: int) -> int:
    """Returns a descriptor that can be read once a process has ended; the caller closes it.

    Where the system makes none (no pidfd), it is a pipe that a thread closes at that end.

    Raises:
        ProcessLookupError: There is no such process.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    os.getpgid(pid)
    ended, closed = os.pipe()
    start_thread(
        threading.Thread(target=_await_end, args=(pid, closed), name="telegrad-end", daemon=True)
    )
    return ended


def _await_end(pid: int, closed: int) -> None:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # not a child, or reaped already
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.getpgid(pid)
                time.sleep(LOOK_SECONDS)
    finally:
        os.close(closed)


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


def start_thread(thread: threading.Thread) -> None:
    """For the library: starts a thread.

    Raises:
        RuntimeError: The system starts no more; names the limits of this process.
    """
    try:
        thread.start()
    except RuntimeError as error:
        limits = (
            ("-v", resource.RLIMIT_AS, 2**20, " MiB of memory"),
            ("-u", resource.RLIMIT_NPROC, 1, " threads of its user"),
        )
        set_ = [
            f"`ulimit {option}` allows it {limit // unit}{of}"
            for option, name, unit, of in limits
            if (limit := resource.getrlimit(name)[0]) != resource.RLIM_INFINITY
        ]
        allowed = " and ".join(set_) or "pids.max of its container may be too small"
        words = f"process {os.getpid()} starts no further thread ({error}): {allowed}; raise it"
        raise RuntimeError(words) from error
