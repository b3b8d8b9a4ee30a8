"""A worker that computes without a pause, and one that waits for it."""

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
        assert rpc.rpc_sync(to, busy, (seconds,), timeout=math.inf) > 0
    except WorkerLostError as error:
        lost.append(str(error))
    return lost
