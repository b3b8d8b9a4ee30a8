"""torch.distributed.autograd as one of the peers that benchmarks/dist_autograd.py measures."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import passes
import torch
import torch_passes  # this module by its name: what runs is called __main__, and calls go by name
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer


def layer(rank: int) -> passes.Layer:
    """Runs at the worker that is to own it."""
    return passes.Layer(torch.from_numpy(passes.weight(rank)).requires_grad_())


def weight_of(rref: Any) -> Any:
    """Runs at the owner of the layer."""
    return rpc.RRef(rref.local_value().weight)


class Torch:
    """See passes.Library."""

    version = torch.__version__
    rpc = rpc
    dist_autograd = autograd

    def tensor(self, array: passes.Floats) -> Any:
        """See passes.Library."""
        return torch.from_numpy(array).requires_grad_()

    def numpy(self, tensor: Any) -> passes.Floats:
        """See passes.Library."""
        found: passes.Floats = tensor.detach().numpy()
        return found

    def make_layer(self, rank: int) -> Any:
        """See passes.Library."""
        return rpc.remote(rank, torch_passes.layer, args=(rank,))

    def weight_of(self, layer: Any) -> Any:
        """See passes.Library."""
        return rpc.rpc_sync(layer.owner(), torch_passes.weight_of, args=(layer,))

    def optimizer(self, weights: list[Any]) -> Any:
        """See passes.Library."""
        return DistributedOptimizer(torch.optim.SGD, weights, lr=passes.LEARNING_RATE)

    def join(self, rank: int, workers: int, place: Path, secret: str) -> None:
        """See passes.Library; torch knows no secrets."""
        del secret
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # it is in maintenance, and says so
        rpc.init_rpc(
            f"worker{rank}",
            rank=rank,
            world_size=workers,
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{place}"),
        )


def serve(rank: int, workers: int, place: Path, secret: str) -> None:
    """Any worker but the first: serves until that one shuts down."""
    Torch().join(rank, workers, place, secret)
    rpc.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # else it asks the name of this host
    passes.run(Torch(), serve, "")
