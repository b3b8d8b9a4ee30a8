"""The jobs of jobs.py written with telegrad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import telegrad_jobs  # this module by its name: what runs is called __main__, and calls go by name
import telegrad_passes

from telegrad import autograd, optim, rpc
from telegrad.nn import functional
from telegrad.parallel import DistributedOptimizer


class Server(jobs.Server):
    """On this library."""

    def __init__(self) -> None:
        super().__init__(Telegrad())


class Batched(jobs.Batched):
    """On this library."""

    def __init__(self) -> None:
        super().__init__(Telegrad(), rpc.Future)

    @rpc.functions.async_execution
    def push(self, gradients: list[Any]) -> Any:
        """See jobs.Batched."""
        return super().push(gradients)


class Telegrad(telegrad_passes.Telegrad):
    """See jobs.Library; arrays travel, and no tensors, where no gradient has to follow."""

    def fetched(self, parameter: Any) -> Any:
        """See jobs.Library: a step replaces the array, and never writes into it."""
        return parameter

    def constant(self, array: Any) -> Any:
        """See jobs.Library."""
        return autograd.as_tensor(array) if array.dtype == np.float32 else array

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """See jobs.Library."""
        return functional.linear(x, weight, bias)

    def relu(self, x: Any) -> Any:
        """See jobs.Library."""
        return functional.relu(x)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        """See jobs.Library."""
        return functional.cross_entropy(logits, labels)

    def gradients(self, loss: Any, parameters: list[Any]) -> list[Any]:
        """See jobs.Library."""
        return [each.data for each in autograd.grad(loss, parameters)]

    def stepper(self, parameters: list[Any]) -> Callable[[list[Any]], list[Any]]:
        """See jobs.Library."""
        optimizer = optim.SGD(parameters, lr=jobs.LEARNING_RATE, momentum=jobs.MOMENTUM)

        def step(gradients: list[Any]) -> list[Any]:
            optimizer.apply(dict(zip(parameters, gradients, strict=True)))
            return [each.data for each in parameters]

        return step

    def assign(self, parameter: Any, value: Any) -> None:
        """See jobs.Library."""
        parameter.data = value

    def optimizer(self, weights: list[Any]) -> Any:
        """See passes.Library."""
        return DistributedOptimizer(
            optim.SGD, weights, lr=jobs.LEARNING_RATE, momentum=jobs.MOMENTUM
        )

    def server(self, kind: str) -> Any:
        """See jobs.Library."""
        # By the module's own names: those of __main__ are other classes.
        made = telegrad_jobs.Server if kind == "parameter server" else telegrad_jobs.Batched
        return rpc.RRef(made())

    def train(self, rank: int, kind: str, server: Any, steps: int) -> Any:
        """See jobs.Library."""
        return rpc.rpc_async(rank, telegrad_jobs.train, (kind, server, rank, steps))


def train(kind: str, server: Any, rank: int, steps: int) -> jobs.Trained:
    """Runs at a trainer; see jobs.train."""
    return jobs.train(Telegrad(), kind, server, rank, steps)


def serve(rank: int, workers: int, place: Path, secret: str) -> None:
    """A trainer: serves until the server shuts down."""
    Telegrad().join(rank, workers, place, secret)
    rpc.shutdown()


if __name__ == "__main__":
    jobs.run(Telegrad(), serve)
