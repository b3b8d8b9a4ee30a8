"""telegrad's data-parallel step."""

from __future__ import annotations

from typing import Any

import collectives
import ddp
import numpy as np
import steps
import telegrad_collectives

from telegrad import autograd, nn, optim
from telegrad.parallel import DistributedDataParallel


class Telegrad(telegrad_collectives.Telegrad):
    """See ddp.Library."""

    nn = nn
    optim = optim

    def load(self, network: Any) -> None:
        """See ddp.Library."""
        network.load_state_dict(steps.state(network.state_shapes()))

    def replica(self, network: Any) -> Any:
        """See ddp.Library."""
        return DistributedDataParallel(network)

    def constant(self, array: Any) -> Any:
        """See ddp.Library."""
        return autograd.as_tensor(array) if array.dtype == np.float32 else array


if __name__ == "__main__":
    collectives.run(Telegrad(), ddp.measure, ddp.FIGURES)
