"""A server that is pushed to by many at once; each worker is a process of its own."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from telegrad import rpc
from telegrad.types import Array

__all__ = ["begin", "peak", "pushes", "take"]

COUNTS: dict[str, int] = {}
LOCK = threading.Lock()


def begin() -> int:
    """Forgets the peaks so far; returns the resident bytes."""
    COUNTS.clear()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> tuple[int, int, int, int]:
    """Returns the most resident bytes, those that no other process has, admitted ones, and pushes."""
    return _status("VmHWM"), COUNTS["own"], COUNTS["admitted"], COUNTS["came"]


def take(array: Array) -> int:
    """Takes a push and adds it up."""
    admitted = rpc.statistics().admitted_bytes
    own = _status("VmRSS") - _status("RssShmem")
    with LOCK:
        COUNTS["came"] = COUNTS.get("came", 0) + 1
        COUNTS["own"] = max(COUNTS.get("own", 0), own)
        COUNTS["admitted"] = max(COUNTS.get("admitted", 0), admitted)
    return int(array[::4096].sum(dtype=np.int64))


def pushes(to: str, count: int, size: int) -> list[int]:
    """Has so many arrays under way to a worker at once; returns their sums."""
    array = np.ones(size, np.uint8)
    return rpc.wait_all([rpc.rpc_async(to, take, (array,)) for _ in range(count)])


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])
