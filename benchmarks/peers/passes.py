"""Steps of distributed autograd that telegrad and torch run alike; needs NumPy alone.

Both have `rpc.remote`, `RRef.rpc_sync()`, `dist_autograd.context`, `backward` and
`DistributedOptimizer` under the same names, so each step is written once; the first argument is what
a peer calls them. All start from the same numbers, in float32.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["LEARNING_RATE", "Layer", "Library", "Plan", "plan", "run", "weight"]

SIZE, BATCH = 256, 32
LEARNING_RATE = 0.01
TENSORS = (1, 10, 100, 1000)
LENGTH = 16  # of each of them
WARM_UP = 5
LEAST = 5  # samples, however long one takes
SHOWN = 8  # numbers of each case by which the peers are compared

Floats = npt.NDArray[np.float32]
Step = Callable[[], Any]


class Library(Protocol):
    """What a peer calls things."""

    version: str
    rpc: Any
    dist_autograd: Any

    def tensor(self, array: Floats) -> Any:
        """Returns a leaf that needs a gradient."""

    def numpy(self, tensor: Any) -> Floats:
        """Returns its numbers."""

    def make_layer(self, rank: int) -> Any:
        """Has a worker make its `Layer`; returns a reference."""

    def weight_of(self, layer: Any) -> Any:
        """Returns a reference to the weight of a layer, which lives where it does."""

    def optimizer(self, weights: list[Any]) -> Any:
        """Returns SGD of parameters that others own."""

    def join(self, rank: int, workers: int, place: Path, secret: str) -> None:
        """Joins the job; who meet in a place and know the secret are one."""


class Layer:
    """A square layer on one worker; it may call the next one."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def forward(self, x: Any) -> Any:
        """Returns (batch, SIZE)."""
        return x @ self.weight

    def through(self, x: Any, following: list[Any]) -> Any:
        """Through this one and those that follow, each called by the one before."""
        y = x @ self.weight
        return following[0].rpc_sync().through(y, following[1:]) if following else y

    def doubled(self, tensors: list[Any]) -> list[Any]:
        """Returns as many tensors as it is given."""
        return [2.0 * each for each in tensors]

    def shown(self) -> Any:
        """Returns the weight itself, without its need of a gradient."""
        return self.weight.detach()


def weight(rank: int) -> Floats:
    """Returns the weight of a worker's layer."""
    rng = np.random.default_rng(rank)
    return (rng.uniform(-1, 1, (SIZE, SIZE)) / np.sqrt(SIZE)).astype(np.float32)


def batch() -> Floats:
    """Returns the batch."""
    return np.random.default_rng(99).standard_normal((BATCH, SIZE)).astype(np.float32)


# -- the steps -------------------------------------------------------------------------------------


def layer_step(lib: Library) -> tuple[Step, Step]:
    """Two calls of one layer on another worker, backward, and a step of SGD there."""
    layer = lib.make_layer(1)
    optimizer = lib.optimizer([lib.weight_of(layer)])
    x = lib.tensor(batch())

    def step() -> None:
        with lib.dist_autograd.context() as context_id:
            y = layer.rpc_sync().forward(layer.rpc_sync().forward(x))
            lib.dist_autograd.backward(context_id, [(y * y).mean()])
            optimizer.step(context_id)

    def shown() -> Floats:
        step()
        return lib.numpy(layer.rpc_sync().shown())

    return step, shown


def chain_step(lib: Library, workers: int) -> tuple[Step, Step]:
    """A call through a layer on each other worker, one calling the next, and backward."""
    layers = [lib.make_layer(rank) for rank in range(1, workers)]
    x = lib.tensor(batch())

    def step() -> Any:
        with lib.dist_autograd.context() as context_id:
            y = layers[0].rpc_sync().through(x, layers[1:])
            lib.dist_autograd.backward(context_id, [(y * y).mean()])
            return lib.dist_autograd.get_gradients(context_id)[x]

    return step, lambda: lib.numpy(step())


def tensors_step(lib: Library, count: int) -> tuple[Step, Step]:
    """So many small tensors to another worker, as many back, and backward."""
    layer = lib.make_layer(1)
    rng = np.random.default_rng(5)
    given = [lib.tensor(rng.standard_normal(LENGTH).astype(np.float32)) for _ in range(count)]

    def step() -> Any:
        with lib.dist_autograd.context() as context_id:
            found = layer.rpc_sync().doubled(given)
            losses = [(each * each).sum() for each in found]
            lib.dist_autograd.backward(context_id, losses)
            return lib.dist_autograd.get_gradients(context_id)[given[-1]]

    return step, lambda: lib.numpy(step())


# -- how they are measured -------------------------------------------------------------------------


class Plan(argparse.Namespace):
    """What a peer's program was told: how many workers, how long each figure may take."""

    workers: int
    seconds: float
    chain: bool
    step: bool


def plan(arguments: list[str] | None = None) -> Plan:
    """Reads the command line of a peer's program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2, help="the caller included")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--chain", action="store_true", help="through all workers alone")
    parser.add_argument("--step", action="store_true", help="the step of one layer alone")
    return parser.parse_args(arguments, Plan())


def measure(lib: Library, told: Plan) -> dict[str, Any]:
    """Returns the figures, in microseconds, each with numbers to compare."""
    if told.chain:
        return {"chain": latency(*chain_step(lib, told.workers), told.seconds)}
    found = {"step": latency(*layer_step(lib), told.seconds)}
    for count in () if told.step else TENSORS:
        found[f"tensors {count}"] = latency(*tensors_step(lib, count), told.seconds)
    return found


def latency(step: Step, shown: Step, seconds: float) -> dict[str, Any]:
    """Times a step; the first run of all gives the numbers."""
    values = [float(each) for each in np.ravel(shown())[:SHOWN]]
    for _ in range(WARM_UP):
        step()
    samples = []
    end = time.perf_counter() + seconds
    while len(samples) < LEAST or time.perf_counter() < end:
        began = time.perf_counter()
        step()
        samples.append(time.perf_counter() - began)
    samples.sort()
    return {
        "p50": statistics.median(samples) * 1e6,
        "p99": samples[min(len(samples) - 1, int(len(samples) * 0.99))] * 1e6,
        "samples": len(samples),
        "values": values,
    }


def run(lib: Library, serve: Callable[..., None], secret: str) -> None:
    """Starts the other workers, measures, and reports in the last line.

    Args:
        lib: The peer.
        serve: Joins with (rank, workers, place, secret) and serves until all shut down.
        secret: What the workers of this job know.
    """
    told = plan()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        job = (told.workers, Path(directory) / "store", secret)
        processes = [
            spawn.Process(target=serve, args=(rank, *job), daemon=True)
            for rank in range(1, told.workers)
        ]
        for process in processes:
            process.start()
        lib.join(0, *job)
        figures = measure(lib, told)
        lib.rpc.shutdown()
        for process in processes:
            process.join()
    sys.stdout.write(json.dumps({"version": lib.version, "figures": figures}) + "\n")
    sys.stdout.flush()
