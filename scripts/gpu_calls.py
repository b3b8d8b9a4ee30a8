"""Times calls with arrays of a GPU between two processes: by host memory, and by memory that both open."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from telegrad import launch, rpc
from telegrad.arrays import staging

__all__ = ["measure_calls", "measure_staging"]

MIB = 2**20
SIZES = (1 * MIB, 64 * MIB)
PIECES = (MIB // 2, 1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
CALLS = 30
WARM_UP = 5  # the first goes over no stream yet, the second one is for trial


def measure_calls(
    xp: Any, sizes: Sequence[int] = SIZES, calls: int = CALLS
) -> list[dict[str, Any]]:
    """Returns a row for each size and way: the median time of a call that gives a copy back."""
    rows = []
    for shared in (False, True):
        options = rpc.RpcOptions(cuda_ipc=shared)
        with rpc.init_rpc("timing", options=options), launch.LocalWorkers(1) as workers:
            for size in sizes:
                array = xp.ones(size, dtype=np.uint8)
                took = [_called(workers.names[0], array) for _ in range(WARM_UP + calls)]
                way = "there and back, shared" if shared else "there and back, by the host"
                rows.append(_row(way, size, median(took[WARM_UP:]), 2 * size))
    return rows


def measure_staging(xp: Any, size: int = 64 * MIB, calls: int = CALLS) -> list[dict[str, Any]]:
    """Returns a row for each size of a piece, and way: the median time of one copy."""
    rows = []
    there, here = xp.ones(size, dtype=np.uint8), np.ones(size, np.uint8)
    usual = staging.PIECE_BYTES
    try:
        for piece in PIECES:
            staging.PIECE_BYTES = piece
            for way, run in (("to", staging.fill_gpu), ("from", staging.fill_from_gpu)):
                args = (there, here) if way == "to" else (here, there)
                took = [_timed(run, *args, xp) for _ in range(WARM_UP + calls)]
                words = f"{way} the GPU in pieces of {piece / MIB:g} MiB"
                rows.append(_row(words, size, median(took[WARM_UP:]), size))
    finally:
        staging.PIECE_BYTES = usual
    return rows


def _called(worker: str, array: Any) -> float:
    return _timed(lambda: rpc.rpc_sync(worker, np.copy, (array,)))


def _timed(run: Any, *args: Any) -> float:
    began = time.perf_counter()
    run(*args)
    return 1e3 * (time.perf_counter() - began)


def _row(what: str, size: int, ms: float, moved: int) -> dict[str, Any]:
    return {
        "what": what,
        "size": f"{size / MIB:g} MiB",
        "numpy_ms": None,
        "cupy_ms": ms,
        "gb_per_s": moved / ms / 1e6,
    }
