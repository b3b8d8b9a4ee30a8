"""A worker that computes without a pause in several threads, and one that waits for it."""

from __future__ import annotations

import math
import time

from telegrad import rpc
from telegrad.errors import WorkerLostError


def busy(seconds: float) -> int:
    """Computes in pure Python, and never lets go of a processor by itself."""
    ends, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        rounds += sum(range(100)) > 0
    return rounds


def calls_busy(to: str, seconds: float) -> list[str]:
    """Waits for a busy worker; returns whom it lost meanwhile."""
    lost: list[str] = []
    rpc.on_loss(lambda worker, error: lost.append(str(error)))
    try:
        calls = [rpc.rpc_async(to, busy, (seconds,), timeout=math.inf) for _ in range(4)]
        assert rpc.rpc_sync(to, busy, (0.0,), timeout=math.inf) == 0  # beside them
        assert min(rpc.wait_all(calls)) > 0
    except WorkerLostError as error:
        lost.append(str(error))
    return lost
