"""Times calls, also beside torch's, and all_reduces of a GPU's arrays between two processes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from telegrad import collectives, launch, rpc
from telegrad.arrays import shared_empty, staging

__all__ = ["measure_calls", "measure_reductions", "measure_staging", "time_reductions"]

MIB = 2**20
SIZES = (1 * MIB, 64 * MIB)
PIECES = (MIB // 2, 1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
CALLS = 30
TORCH_SECONDS = 40
TORCH_PROGRAM = Path(__file__).with_name("gpu_torch_calls.py")
WARM_UP = 5  # the first goes over no stream yet, the second one is for trial


def measure_calls(
    xp: Any, sizes: Sequence[int] = SIZES, calls: int = CALLS
) -> list[dict[str, Any]]:
    """Times calls that give a copy back, of telegrad and of torch.distributed.rpc.

    Returns:
        A row for each size: `size`, and `host`, `shared` and `torch`, the median milliseconds by
        host memory, by memory that both open, and of torch (None, and then `why` in words).
    """
    rows: list[dict[str, Any]] = [{"size": f"{size / MIB:g} MiB"} for size in sizes]
    for way in ("host", "shared"):
        options = rpc.RpcOptions(cuda_ipc=way == "shared")
        with rpc.init_rpc("timing", options=options), launch.LocalWorkers(1) as workers:
            for row, size in zip(rows, sizes, strict=True):
                array = xp.ones(size, dtype=np.uint8)
                took = [_called(workers.names[0], array) for _ in range(WARM_UP + calls)]
                row[way] = median(took[WARM_UP:])
    found, why = _torch_calls(sizes, calls)
    for place, row in enumerate(rows):
        row |= {"torch": found[place] if found else None, "why": why}
    return rows


def measure_reductions(sizes: Sequence[int] = SIZES, calls: int = CALLS) -> list[dict[str, Any]]:
    """Times `all_reduce` of two processes that share a GPU.

    Returns:
        A row for each size: `size`, and `host` and `shared`, the median milliseconds by host memory
        and by memory of the GPU that both open.
    """
    rows: list[dict[str, Any]] = [{"size": f"{size / MIB:g} MiB"} for size in sizes]
    for way, backend in (("host", "host"), ("shared", "nccl")):
        with rpc.init_rpc("timing"), launch.LocalWorkers(1) as workers:
            other = rpc.rpc_async(workers.names[0], time_reductions, (backend, list(sizes), calls))
            for row, ms in zip(rows, time_reductions(backend, sizes, calls), strict=True):
                row[way] = ms
            other.wait()
    return rows


def time_reductions(backend: str, sizes: Sequence[int], calls: int) -> list[float]:
    """Returns the median milliseconds at one rank of two.

    Raises:
        ArithmeticError: A result is wrong.
    """
    xp: Any = importlib.import_module("cupy")
    group = collectives.init_process_group(backend=backend, world_size=2)
    medians = []

    def reduce_and_wait(array: Any) -> None:
        collectives.all_reduce(array, collectives.ReduceOp.AVG)
        xp.cuda.get_current_stream().synchronize()

    for size in sizes:
        array = xp.full(size // 4, group.rank + 1.0, np.float32)
        took = [_timed(reduce_and_wait, array) for _ in range(WARM_UP + calls)]
        if float(array.sum()) != 1.5 * (size // 4):
            raise ArithmeticError(f"the mean of 1 and 2 of two ranks is wrong (backend {backend})")
        medians.append(median(took[WARM_UP:]))
    collectives.destroy_process_group()
    return medians


def _torch_calls(sizes: Sequence[int], calls: int) -> tuple[list[float], str]:
    """Returns torch's times; or none, and why."""
    if importlib.util.find_spec("torch") is None:
        return [], "torch is not installed"
    # TensorPipe finds its address by the host's name, which not every machine can look up.
    environment = {**os.environ, "TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory(prefix="telegrad-gpu-") as folder:
        printed, said = Path(folder) / "stdout", Path(folder) / "stderr"
        words = [sys.executable, str(TORCH_PROGRAM), str(Path(folder) / "store"), str(calls)]
        words += map(str, sizes)
        ended = "torch's calls ended without a word"
        with printed.open("w") as out, said.open("w") as err, ExitStack() as stack:
            for rank in ("1", "0"):
                command = [*words[:2], rank, *words[2:]]
                process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
                stack.callback(process.wait)
                stack.callback(process.kill)
            try:
                process.wait(TORCH_SECONDS)
            except subprocess.TimeoutExpired:
                ended = f"torch's calls took longer than {TORCH_SECONDS} s"
        lines = [line for line in printed.read_text().splitlines() if line.startswith("[")]
        if lines:
            return json.loads(lines[-1]), ""
        errors = re.findall(r"^\w*(?:Error|Exception)\b.*", said.read_text(), re.MULTILINE)
    return [], errors[0][:200] if errors else ended


def measure_staging(xp: Any, size: int = 64 * MIB, calls: int = CALLS) -> list[dict[str, Any]]:
    """Returns a row for each size of a piece, and way: the median time of one copy.

    The last two are those of shared memory, which is copied at once.
    """
    rows = []
    there, shared = xp.ones(size, dtype=np.uint8), shared_empty(size, np.uint8)
    usual = staging.PIECE_BYTES
    plain = np.ones(size, np.uint8)
    kinds = [(f"in pieces of {piece / MIB:g} MiB", piece, plain) for piece in PIECES]
    try:
        for words, piece, here in (*kinds, ("and shared memory", usual, shared)):
            staging.PIECE_BYTES = piece
            for way, run in (("to", staging.fill_gpu), ("from", staging.fill_from_gpu)):
                args = (there, here) if way == "to" else (here, there)
                took = [_timed(run, *args, xp) for _ in range(WARM_UP + calls)]
                rows.append(_row(f"{way} the GPU {words}", size, median(took[WARM_UP:])))
    finally:
        staging.PIECE_BYTES = usual
    return rows


def _called(worker: str, array: Any) -> float:
    return _timed(lambda: rpc.rpc_sync(worker, np.copy, (array,)))


def _timed(run: Any, *args: Any) -> float:
    began = time.perf_counter()
    run(*args)
    return 1e3 * (time.perf_counter() - began)


def _row(what: str, size: int, ms: float) -> dict[str, Any]:
    return {
        "what": what,
        "size": f"{size / MIB:g} MiB",
        "numpy_ms": None,
        "cupy_ms": ms,
        "gb_per_s": size / ms / 1e6,
    }
