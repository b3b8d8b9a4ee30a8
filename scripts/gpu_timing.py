"""Times the kernels on the GPU against their twins of NumPy, and more; prints lines of JSON.

Each line says all that is known so far, so that the last one stands where something takes too long.

Each number is a median after warm-up; on the GPU it is measured by CUDA events around the call, so
that the time of launches and of waits inside it counts. NumPy uses one thread. GB/s are the bytes that
must be moved at the least (each input read once, each output written once), to be compared with a
copy from one part of the GPU's memory to another. Calls between processes, and copies in pieces, are
timed by the clock (`gpu_calls`): they end when all is done. So are training steps (`gpu_steps`).
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from scripts.gpu_calls import measure_calls, measure_reductions, measure_staging
from scripts.gpu_fused import FusedCase, fused_cases, torch_or_none
from scripts.gpu_steps import measure_steps
from telegrad import arrays, kernels, nn, optim

__all__ = ["Case", "Sizes", "cases", "measure", "measure_fused", "time_cupy", "time_numpy"]

WARM_UP = 3  # calls, or one if that took longer than SECONDS
FEWEST, MOST = 3, 200
SECONDS = 0.5  # for one number, once the fewest calls are done
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How big the inputs are."""

    rows: tuple[tuple[int, int], ...] = ((64, 10), (4096, 1000), (2048, 32000))
    buckets: tuple[tuple[int, int], ...] = ((1, 1024), (6, 1024), (400, 128))  # count, side
    copy_bytes: int = 512 * MIB
    transfer_bytes: int = 64 * MIB
    steps: tuple[tuple[int, int], ...] = ((64, 64), (1024, 2048))  # batch, width


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        what: What is run.
        size: On what.
        bytes: What must be moved at the least; 0 where that says nothing.
        run: Runs it once.
        both: Whether NumPy has a twin.
    """

    what: str
    size: str
    bytes: int
    run: Callable[[], object]
    both: bool = True


def cases(xp: Any, sizes: Sizes) -> list[Case]:
    """Returns the rows on arrays of `xp`, NumPy or CuPy; the first is the copy."""
    found = [copy_case(xp, sizes.copy_bytes)]
    for rows, classes in sizes.rows:
        found += cross_entropy_cases(xp, rows, classes)
    for count, side in sizes.buckets:
        found += bucket_cases(xp, count, side)
    found += transfer_cases(xp, sizes.transfer_bytes)
    found += [step_case(xp, batch, width) for batch, width in sizes.steps]
    return found


def copy_case(xp: Any, size: int) -> Case:
    """One part of memory to another."""
    source, target = xp.zeros(size, dtype=np.uint8), xp.empty(size, dtype=np.uint8)

    def run() -> None:
        target[...] = source

    return Case("copy", megabytes(size), 2 * size, run)


def cross_entropy_cases(xp: Any, rows: int, classes: int) -> list[Case]:
    """The forward and the backward of cross entropy."""
    rng = np.random.default_rng(0)
    logits = xp.asarray(rng.normal(size=(rows, classes)).astype(np.float32))
    labels = xp.asarray(rng.integers(0, classes, rows))
    gradient = xp.asarray(np.full(rows, 1 / rows, np.float32))
    size, moved = f"{rows} x {classes}", 4 * rows * classes
    return [
        Case("cross_entropy", size, moved, lambda: kernels.cross_entropy(logits, labels)),
        Case(
            "cross_entropy_gradient",
            size,
            2 * moved,
            lambda: kernels.cross_entropy_gradient(gradient, logits, labels),
        ),
    ]


def bucket_cases(xp: Any, count: int, side: int) -> list[Case]:
    """Gradients of some layers into one buffer and back."""
    parts = [xp.ones((side, side), dtype=np.float32) for _ in range(count)]
    shapes = [part.shape for part in parts]
    buffer = kernels.flatten(parts)
    size, moved = f"{count} x ({side}, {side})", 8 * count * side * side
    return [
        Case("flatten", size, moved, lambda: kernels.flatten(parts, scale=0.5, out=buffer)),
        Case("unflatten", size, moved, lambda: kernels.unflatten(buffer, shapes, scale=0.5)),
    ]


def transfer_cases(xp: Any, size: int) -> list[Case]:
    """To the host and from it, as calls and collectives do."""
    there, here = xp.zeros(size, dtype=np.uint8), np.zeros(size, np.uint8)
    return [
        Case("to the host", megabytes(size), size, lambda: arrays.to_host(there), both=False),
        Case(
            "from the host",
            megabytes(size),
            size,
            lambda: arrays.to_device(here, arrays.device_of(there)),
            both=False,
        ),
    ]


def step_case(xp: Any, batch: int, width: int) -> Case:
    """A step of training: forward, backward, SGD with momentum."""
    rng = np.random.default_rng(0)
    layers = [nn.Linear(width, width, rng=rng), nn.ReLU(), nn.Linear(width, 10, rng=rng)]
    images = xp.asarray(rng.normal(size=(batch, width)).astype(np.float32))
    labels = xp.asarray(rng.integers(0, 10, batch))
    model = nn.Sequential(*layers).to(arrays.device_of(images))
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return Case("training step", f"batch {batch}, width {width}", 0, run)


def megabytes(size: int) -> str:
    """Writes a number of bytes."""
    return f"{size / MIB:g} MiB"


def repeat(once: Callable[[], float]) -> float:
    """Returns the median of what `once` returns, milliseconds."""
    began = time.perf_counter()
    for _ in range(WARM_UP):
        once()
        if time.perf_counter() - began > SECONDS:
            break
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < FEWEST or (len(found) < MOST and time.perf_counter() - began < SECONDS):
        found.append(once())
    return median(found)


def time_numpy(run: Callable[[], object]) -> float:
    """Returns the median milliseconds of a call in host memory."""

    def once() -> float:
        began = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - began)

    return repeat(once)


def time_cupy(
    xp: Any, run: Callable[[], object], *, first: Callable[[], object] | None = None
) -> float:
    """Returns the median milliseconds of a call on the GPU, by events before and after it.

    Args:
        xp: CuPy.
        run: Runs it once.
        first: Keeps the GPU busy while the host launches `run`, so that the time of launches does
            not count.
    """
    start, end = xp.cuda.Event(), xp.cuda.Event()

    def once() -> float:
        if first is not None:
            first()
        start.record()
        run()
        end.record()
        end.synchronize()
        elapsed: float = xp.cuda.get_elapsed_time(start, end)
        return elapsed

    return repeat(once)


def measure(xp: Any, sizes: Sizes) -> dict[str, Any]:
    """Times all cases; `xp` is CuPy."""
    rows: list[dict[str, Any]] = []
    copy = 0.0
    for there, here in zip(cases(xp, sizes), cases(np, sizes), strict=True):
        cupy_ms = time_cupy(xp, there.run)
        rate = there.bytes / cupy_ms / 1e6 if there.bytes else None
        copy = copy or rate or 0.0
        rows.append(
            {
                "what": there.what,
                "size": there.size,
                "numpy_ms": time_numpy(here.run) if there.both else None,
                "cupy_ms": cupy_ms,
                "gb_per_s": rate,
            }
        )
    return {"copy_gb_per_s": copy, "rows": rows}


def measure_fused(
    xp: Any, found: Iterable[FusedCase], *, busy_bytes: int = 1024 * MIB
) -> list[dict[str, Any]]:
    """Times fused kernels; `xp` is CuPy. All run on the default stream, torch's kernels too.

    Three copies of `busy_bytes` come before each call. They take longer than the host needs to
    launch the call, and they empty the cache, so the numbers are those of the kernels alone.
    """
    copy = copy_case(xp, busy_bytes).run

    def busy() -> None:
        for _ in range(3):
            copy()

    def time_or_none(run: Callable[[], object] | None) -> float | None:
        return None if run is None else time_cupy(xp, run, first=busy)

    rows = []
    for case in found:
        fused_ms = time_cupy(xp, case.fused, first=busy)
        rows.append(
            {
                "what": case.what,
                "size": case.size,
                "numpy_ms": None,
                "cupy_ms": fused_ms,
                "gb_per_s": case.bytes / fused_ms / 1e6 if fused_ms else None,
                "composed_ms": time_or_none(case.composed),
                "torch_ms": time_or_none(case.torch),
            }
        )
    return rows


def main() -> int:
    """Runs the command; returns its exit code."""
    cupy = importlib.import_module("cupy")
    torch = torch_or_none()
    result = measure(cupy, Sizes())
    parts: tuple[tuple[str, Callable[[], list[dict[str, Any]]]], ...] = (
        ("steps", lambda: measure_steps(cupy, torch)),
        ("rows", lambda: measure_fused(cupy, fused_cases(cupy, torch))),
        ("rows", lambda: measure_staging(cupy)),
        ("calls", lambda: measure_calls(cupy)),
        ("reductions", measure_reductions),
    )
    for name, part in parts:
        result[name] = result.get(name, []) + part()
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
