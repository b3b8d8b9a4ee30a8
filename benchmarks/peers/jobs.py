"""Two jobs that telegrad and torch run alike: a parameter server, and batched updates.

    parameter server   each trainer fetches the parameters, backward through the fetch, and a step
                       of SGD where they live, whenever it likes (examples/parameter_server.py)
    batch              trainers push gradients; the push that fills a round steps for all, and
                       everybody gets the new parameters (examples/batch_rpc.py, with plain SGD)

One server, two trainers. Written once: the first argument is what a peer calls things, as in
passes.py. The model, its first numbers and the images, which are noise, are the same for both. A
layer is the `functional.linear` of either library, as in modules of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import passes

__all__ = ["LEARNING_RATE", "MOMENTUM", "Batched", "Library", "Server", "run", "train"]

KINDS = ("parameter server", "batch")
WIDTHS = {"parameter server": (64, 128, 64, 10), "batch": (64, 256, 256, 10)}
BATCH = 32
BATCHES = 16  # of images that a trainer has
LEARNING_RATE, MOMENTUM = 0.05, 0.9
TRAINERS = 2
WARM_UP = 10  # steps

Floats = npt.NDArray[np.float32]


class Library(passes.Library, Protocol):
    """What a peer calls things."""

    def fetched(self, parameter: Any) -> Any:
        """Returns what a fetch of a parameter answers with."""

    def constant(self, array: npt.NDArray[Any]) -> Any:
        """Returns a tensor that needs no gradient."""

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """Returns `x @ weight.T + bias`."""

    def relu(self, x: Any) -> Any:
        """Returns the positive part."""

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        """Returns the mean over a batch."""

    def gradients(self, loss: Any, parameters: list[Any]) -> list[Any]:
        """Returns them, as what travels best."""

    def stepper(self, parameters: list[Any]) -> Callable[[list[Any]], list[Any]]:
        """Returns what steps parameters by their gradients, and answers with their values."""

    def assign(self, parameter: Any, value: Any) -> None:
        """Gives a parameter a value."""

    def server(self, kind: str) -> Any:
        """Makes the server of a job on this worker; returns a reference."""

    def train(self, rank: int, kind: str, server: Any, steps: int) -> Any:
        """Has a trainer make so many steps; returns a future of what `train` returns there."""


# -- on the server ---------------------------------------------------------------------------------


def first_parameters(kind: str) -> list[Floats]:
    """Returns weights (out, in) and biases, layer by layer."""
    rng = np.random.default_rng(0)
    shapes = [
        (shape, 1 / np.sqrt(given))
        for given, returned in pairwise(WIDTHS[kind])
        for shape in ((returned, given), (returned,))
    ]
    return [rng.uniform(-bound, bound, shape).astype(np.float32) for shape, bound in shapes]


class Server:
    """Owns the parameters, and answers whoever fetches them."""

    def __init__(self, lib: Library) -> None:
        self._lib = lib
        self.parameters = [lib.tensor(each) for each in first_parameters("parameter server")]

    def fetch(self) -> list[Any]:
        """Returns all parameters."""
        return [self._lib.fetched(each) for each in self.parameters]

    def references(self) -> list[Any]:
        """Returns references to them."""
        return [self._lib.rpc.RRef(each) for each in self.parameters]


class Batched:
    """Gathers a push of each trainer, and steps once for all."""

    def __init__(self, lib: Library, new_future: Callable[[], Any]) -> None:
        parameters = [lib.tensor(each) for each in first_parameters("batch")]
        self._step = lib.stepper(parameters)
        self._new_future = new_future
        self._lock = threading.Lock()  # guards the two below
        self._gathered: list[list[Any]] = []
        self._answer = new_future()

    def push(self, gradients: list[Any]) -> Any:
        """Takes gradients; the future is of the new parameters, when the round is full."""
        with self._lock:
            answer = self._answer
            self._gathered.append(gradients)
            full = self._gathered if len(self._gathered) == TRAINERS else []
            if full:
                self._gathered, self._answer = [], self._new_future()
        if full:
            means = [sum(parts[1:], start=parts[0]) / TRAINERS for parts in zip(*full, strict=True)]
            answer.set_result(self._step(means))
        return answer


# -- on the trainers -------------------------------------------------------------------------------


Trained: TypeAlias = tuple[float, float, float]


def train(lib: Library, kind: str, server: Any, rank: int, steps: int) -> Trained:
    """Makes so many steps; returns the seconds, those of the processor, and the first loss."""
    rng = np.random.default_rng(rank)
    step = (fetching if kind == "parameter server" else pushing)(lib, server)
    batches = [
        (
            lib.constant(rng.standard_normal((BATCH, WIDTHS[kind][0])).astype(np.float32)),
            lib.constant(rng.integers(0, WIDTHS[kind][-1], BATCH)),
        )
        for _ in range(BATCHES)
    ]
    began, before = time.perf_counter(), time.process_time()
    losses = [step(*batches[i % BATCHES]) for i in range(steps)]
    return time.perf_counter() - began, time.process_time() - before, losses[0]


def fetching(lib: Library, server: Any) -> Callable[[Any, Any], float]:
    """Returns a step of the parameter server's trainer."""
    optimizer = lib.optimizer(server.rpc_sync().references())

    def step(images: Any, labels: Any) -> float:
        with lib.dist_autograd.context() as context_id:
            logits = through(lib, server.rpc_sync().fetch(), images)
            loss = lib.cross_entropy(logits, labels)
            lib.dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        return float(loss.item())

    return step


def pushing(lib: Library, server: Any) -> Callable[[Any, Any], float]:
    """Returns a step of the batch job's trainer."""
    parameters = [lib.tensor(each) for each in first_parameters("batch")]

    def step(images: Any, labels: Any) -> float:
        loss = lib.cross_entropy(through(lib, parameters, images), labels)
        pushed = lib.gradients(loss, parameters)
        for parameter, value in zip(
            parameters, server.rpc_async().push(pushed).wait(), strict=True
        ):
            lib.assign(parameter, value)
        return float(loss.item())

    return step


def through(lib: Library, parameters: list[Any], x: Any) -> Any:
    """Returns logits: (batch, 10)."""
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for weight, bias in layers[:-1]:
        x = lib.relu(lib.linear(x, weight, bias))
    return lib.linear(x, *layers[-1])


# -- how they are measured -------------------------------------------------------------------------


def measure(lib: Library, seconds: float) -> dict[str, Any]:
    """Returns images a second, the processor time of a trainer's step, and losses to compare."""
    found = {}
    for kind in KINDS:
        server = lib.server(kind)
        values = together(lib, kind, server, WARM_UP)["values"]
        rate = together(lib, kind, server, WARM_UP)["per_second"]
        steps = max(BATCHES, int(seconds * rate / (TRAINERS * BATCH)))
        found[kind] = {**together(lib, kind, server, steps), "steps": steps, "values": values}
    return found


def together(lib: Library, kind: str, server: Any, steps: int) -> dict[str, Any]:
    """Has all trainers make so many steps.

    Returns:
        All images by the seconds of the slowest trainer, as a job is done when all are: rates of
        trainers that begin or end apart would add up to more. The processor time of one step, in
        microseconds: at its trainer, at the server, and of both. The first losses.
    """
    before = time.process_time()
    training = [lib.train(rank, kind, server, steps) for rank in range(1, TRAINERS + 1)]
    seconds, processor, losses = zip(*[each.wait() for each in training], strict=True)
    at_server = 1e6 * (time.process_time() - before) / (TRAINERS * steps)
    at_trainer = 1e6 * sum(processor) / (TRAINERS * steps)
    return {
        "per_second": TRAINERS * steps * BATCH / max(seconds),
        "trainer": at_trainer,
        "server": at_server,
        "processor": at_trainer + at_server,
        "values": list(losses),
    }


def run(lib: Library, serve: Callable[..., None]) -> None:
    """Starts the trainers, runs both jobs, and reports in the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0, help="for each job")
    told = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        job = (TRAINERS + 1, Path(directory) / "store", secrets.token_hex(16))
        processes = [
            spawn.Process(target=serve, args=(rank, *job), daemon=True)
            for rank in range(1, TRAINERS + 1)
        ]
        for process in processes:
            process.start()
        lib.join(0, *job)
        figures = measure(lib, told.seconds)
        lib.rpc.shutdown()
        for process in processes:
            process.join()
    sys.stdout.write(json.dumps({"version": lib.version, "figures": figures}) + "\n")
    sys.stdout.flush()
