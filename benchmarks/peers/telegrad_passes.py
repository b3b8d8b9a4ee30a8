"""telegrad as one of the peers that benchmarks/dist_autograd.py measures."""

from __future__ import annotations

import secrets
from importlib.metadata import version
from pathlib import Path
from typing import Any

import passes
import telegrad_passes  # this module by its name: what runs is called __main__, and calls go by name

from telegrad import autograd, dist_autograd, optim, rpc
from telegrad.parallel import DistributedOptimizer


def layer(rank: int) -> passes.Layer:
    """Runs at the worker that is to own it."""
    return passes.Layer(autograd.tensor(passes.weight(rank), requires_grad=True))


def weight_of(rref: rpc.RRef[passes.Layer]) -> rpc.RRef[autograd.Tensor]:
    """Runs at the owner of the layer."""
    return rpc.RRef(rref.local_value().weight)


class Telegrad:
    """See passes.Library."""

    version = version("telegrad")
    rpc = rpc
    dist_autograd = dist_autograd

    def tensor(self, array: passes.Floats) -> Any:
        """See passes.Library."""
        return autograd.tensor(array, requires_grad=True)

    def numpy(self, tensor: Any) -> passes.Floats:
        """See passes.Library."""
        found: passes.Floats = tensor.data
        return found

    def make_layer(self, rank: int) -> Any:
        """See passes.Library."""
        return rpc.remote(rank, telegrad_passes.layer, (rank,))

    def weight_of(self, layer: Any) -> Any:
        """See passes.Library."""
        return rpc.rpc_sync(layer.owner(), telegrad_passes.weight_of, (layer,))

    def optimizer(self, weights: list[Any]) -> Any:
        """See passes.Library."""
        return DistributedOptimizer(optim.SGD, weights, lr=passes.LEARNING_RATE)

    def join(self, rank: int, workers: int, place: Path, secret: str) -> None:
        """See passes.Library."""
        rpc.init_rpc(
            f"worker{rank}",
            rank=rank,
            world_size=workers,
            init_method=f"file://{place}",
            options=rpc.RpcOptions(token=secret),
        )


def serve(rank: int, workers: int, place: Path, secret: str) -> None:
    """Any worker but the first: serves until that one shuts down."""
    Telegrad().join(rank, workers, place, secret)
    rpc.shutdown()


if __name__ == "__main__":
    passes.run(Telegrad(), serve, secrets.token_hex(16))
