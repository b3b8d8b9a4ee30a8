"""torch's data-parallel step, over Gloo."""

from __future__ import annotations

from typing import Any

import collectives
import ddp
import steps
import torch
import torch_collectives


class Torch(torch_collectives.Torch):
    """See ddp.Library."""

    nn = torch.nn
    optim = torch.optim

    def load(self, network: Any) -> None:
        """See ddp.Library."""
        shapes = {key: tuple(x.shape) for key, x in network.state_dict().items()}
        start = {key: torch.from_numpy(a) for key, a in steps.state(shapes).items()}
        network.load_state_dict(start)

    def replica(self, network: Any) -> Any:
        """See ddp.Library."""
        return torch.nn.parallel.DistributedDataParallel(network)

    def constant(self, array: Any) -> Any:
        """See ddp.Library."""
        return torch.from_numpy(array)


if __name__ == "__main__":
    collectives.run(Torch(), ddp.measure, ddp.FIGURES)
