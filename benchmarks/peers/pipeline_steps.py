"""What a pipeline computes in the benchmarks: the same network and the same figures for each peer.

A step is a forward and a backward of a mini-batch, without an optimizer. It runs in one process on the
whole mini-batch, in one process micro-batch by micro-batch, and as a pipeline of two stages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BATCH", "LAYERS", "MICRO_BATCHES", "SCHEDULES", "WIDTH", "data", "timed", "weights"]

WIDTH, LAYERS = 1024, 4
BATCH, MICRO_BATCHES = 512, 8
SCHEDULES = ("gpipe", "1f1b")
WARM_UP = 3


def weights() -> list[Any]:
    """Returns the weight of each layer, of shape (WIDTH, WIDTH)."""
    rng = np.random.default_rng(7)
    scale = np.sqrt(2.0 / WIDTH)
    made = [scale * rng.standard_normal((WIDTH, WIDTH)) for _ in range(LAYERS)]
    return [each.astype(np.float32) for each in made]


def data() -> tuple[Any, Any]:
    """Returns inputs of shape (BATCH, WIDTH), and labels."""
    rng = np.random.default_rng(8)
    inputs = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
    return inputs, rng.integers(0, WIDTH, BATCH)


def timed(step: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Repeats a step for so long; returns the median in microseconds, and the number of steps."""
    for _ in range(WARM_UP):
        step()
    taken: list[float] = []
    ends = time.perf_counter() + seconds
    while not taken or time.perf_counter() < ends:
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return {"p50": 1e6 * statistics.median(taken), "steps": len(taken)}
