"""telegrad as one of the peers whose collectives are measured, on one host or between two."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import collectives
import numpy as np

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.arrays import shared_empty


class Telegrad:
    """See collectives.Library."""

    version = version("telegrad")

    def join(self, told: collectives.Plan) -> None:
        """See collectives.Library; the token is in the environment."""
        dist.init_process_group(
            rank=told.rank,
            world_size=told.ranks,
            init_method=told.meet,
            options=rpc.RpcOptions(insecure=told.insecure),
        )

    def leave(self) -> None:
        """See collectives.Library."""
        dist.destroy_process_group()

    def zeros(self, n: int) -> Any:
        """See collectives.Library."""
        return np.zeros(n, np.float32)

    def resident(self, n: int) -> Any:
        """See collectives.Library."""
        return shared_empty(n, np.float32)

    def all_reduce(self, array: Any) -> None:
        """See collectives.Library."""
        dist.all_reduce(array)

    def barrier(self) -> None:
        """See collectives.Library."""
        dist.barrier()

    def send(self, array: Any, to: int) -> None:
        """See collectives.Library."""
        dist.send(array, to)

    def recv(self, array: Any, of: int) -> None:
        """See collectives.Library."""
        dist.recv(array, of)


if __name__ == "__main__":
    collectives.run(Telegrad(), collectives.measure)
