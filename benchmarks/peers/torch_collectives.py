"""torch.distributed over Gloo as one of the peers whose collectives are measured."""

from __future__ import annotations

import os
import warnings
from typing import Any

import collectives
import torch
import torch.distributed as dist


class Torch:
    """See collectives.Library."""

    version = torch.__version__

    def join(self, told: collectives.Plan) -> None:
        """See collectives.Library; Gloo would else ask the name of this host."""
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        between_hosts = told.meet.startswith("tcp:")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0" if between_hosts else "lo")
        dist.init_process_group(
            "gloo", rank=told.rank, world_size=told.ranks, init_method=told.meet
        )

    def leave(self) -> None:
        """See collectives.Library."""
        dist.destroy_process_group()

    def zeros(self, n: int) -> Any:
        """See collectives.Library."""
        return torch.zeros(n)

    def resident(self, n: int) -> Any:
        """See collectives.Library: Gloo has no such memory."""

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
    collectives.run(Torch(), collectives.measure)
