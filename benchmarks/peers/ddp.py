"""A step of data-parallel training that telegrad and torch run alike: the network of perceptron.py.

Both have `nn`, `optim.SGD` and `DistributedDataParallel` under the same names, so the step is written once. Each
rank has a batch of its own. The step runs alone, and then beside processes that compute and have no part in
it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import collectives
import perceptron

__all__ = ["FIGURES", "Library", "measure"]

ALONE, BESIDE = FIGURES = ("step", "step beside 4")
BUSY = 4
LOSSES = 3  # by which the peers are compared
COMPUTE = "print(flush=True)\nwhile True: pass"  # says that it runs


class Library(collectives.Library, Protocol):
    """A peer.

    Attributes:
        nn: Its modules.
        optim: Its optimizers.
    """

    nn: Any
    optim: Any

    def load(self, network: Any) -> None:
        """Gives a network the numbers of steps.state."""

    def replica(self, network: Any) -> Any:
        """Returns the network in a DistributedDataParallel."""

    def constant(self, array: Any) -> Any:
        """Returns a tensor that needs no gradient."""


def measure(lib: Library, told: collectives.Plan) -> dict[str, Any]:
    """Returns the figures, in microseconds, and the losses of the first steps of this rank."""
    nn = lib.nn
    layers = [[nn.Linear(given, made), nn.ReLU()] for given, made in pairwise(perceptron.SIZES)]
    network = nn.Sequential(*[each for layer in layers for each in layer][:-1])
    lib.load(network)
    replica = lib.replica(network)
    optimizer = lib.optim.SGD(network.parameters(), lr=perceptron.LEARNING_RATE)
    x, labels = map(lib.constant, perceptron.data(seed=told.rank))

    def step() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replica(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    found: dict[str, Any] = {}
    losses = [float(step().item()) for _ in range(LOSSES)]
    for name in [name for name in FIGURES if name in told.figures]:
        with busy(BUSY if name == BESIDE and told.rank == 0 else 0):
            found[name] = collectives.timed(lib, told, step, told.seconds)
    found[told.figures[0]]["values"] = losses
    return found


@contextlib.contextmanager
def busy(n: int) -> Iterator[None]:
    """Runs so many processes beside that compute; they run when it begins."""
    words = [sys.executable, "-c", COMPUTE]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(n)]
    try:
        for each in processes:
            assert each.stdout is not None
            each.stdout.readline()
        yield
    finally:
        for each in processes:
            each.kill()
            each.communicate()
