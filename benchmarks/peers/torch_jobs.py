"""The jobs of jobs.py written with torch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import torch
import torch_jobs  # this module by its name: what runs is called __main__, and calls go by name
import torch_passes
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer


class Server(jobs.Server):
    """On this library."""

    def __init__(self) -> None:
        super().__init__(Torch())


class Batched(jobs.Batched):
    """On this library."""

    def __init__(self) -> None:
        super().__init__(Torch(), torch.futures.Future)

    @rpc.functions.async_execution
    def push(self, gradients: list[Any]) -> Any:
        """See jobs.Batched."""
        return super().push(gradients)


class Torch(torch_passes.Torch):
    """See jobs.Library."""

    def fetched(self, parameter: Any) -> Any:
        """See jobs.Library: a step writes into the parameter, perhaps while it is sent."""
        return parameter.clone()

    def constant(self, array: Any) -> Any:
        """See jobs.Library."""
        return torch.from_numpy(array)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """See jobs.Library."""
        return torch.nn.functional.linear(x, weight, bias)

    def relu(self, x: Any) -> Any:
        """See jobs.Library."""
        return torch.relu(x)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        """See jobs.Library."""
        return torch.nn.functional.cross_entropy(logits, labels)

    def gradients(self, loss: Any, parameters: list[Any]) -> list[Any]:
        """See jobs.Library."""
        return list(torch.autograd.grad(loss, parameters))

    def stepper(self, parameters: list[Any]) -> Callable[[list[Any]], list[Any]]:
        """See jobs.Library."""
        optimizer = torch.optim.SGD(parameters, lr=jobs.LEARNING_RATE, momentum=jobs.MOMENTUM)

        def step(gradients: list[Any]) -> list[Any]:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            return [each.detach().clone() for each in parameters]

        return step

    def assign(self, parameter: Any, value: Any) -> None:
        """See jobs.Library."""
        parameter.data = value

    def optimizer(self, weights: list[Any]) -> Any:
        """See passes.Library."""
        return DistributedOptimizer(
            torch.optim.SGD, weights, lr=jobs.LEARNING_RATE, momentum=jobs.MOMENTUM
        )

    def server(self, kind: str) -> Any:
        """See jobs.Library."""
        # By the module's own names: those of __main__ are other classes.
        made = torch_jobs.Server if kind == "parameter server" else torch_jobs.Batched
        return rpc.RRef(made())

    def train(self, rank: int, kind: str, server: Any, steps: int) -> Any:
        """See jobs.Library."""
        return rpc.rpc_async(rank, torch_jobs.train, (kind, server, rank, steps))


def train(kind: str, server: Any, rank: int, steps: int) -> jobs.Trained:
    """Runs at a trainer; see jobs.train."""
    warnings.simplefilter("ignore")  # of torch's own use of TorchScript
    return jobs.train(Torch(), kind, server, rank, steps)


def serve(rank: int, workers: int, place: Path, secret: str) -> None:
    """A trainer: serves until the server shuts down."""
    Torch().join(rank, workers, place, secret)
    rpc.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # else it asks the name of this host
    jobs.run(Torch(), serve)
