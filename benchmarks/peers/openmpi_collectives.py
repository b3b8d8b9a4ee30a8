"""OpenMPI by mpi4py as one of the peers whose collectives are measured.

`mpirun` starts the ranks. They are bound to no core, as those of the other peers. A rank that waits
never sleeps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import collectives
import mpi4py
import numpy as np

RANK = "OMPI_COMM_WORLD_RANK"  # which mpirun sets
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class OpenMPI:
    """See collectives.Library."""

    def join(self, told: collectives.Plan) -> None:
        """See collectives.Library."""
        from mpi4py import MPI  # noqa: PLC0415 - the import joins

        self._world, self._in_place = MPI.COMM_WORLD, MPI.IN_PLACE
        words = MPI.Get_library_version().replace(",", "").split()  # Open MPI v5.0.11 ...
        self.version = f"{words[2].removeprefix('v')} (mpi4py {mpi4py.__version__})"

    def leave(self) -> None:
        """See collectives.Library: it leaves when it ends."""

    def zeros(self, n: int) -> Any:
        """See collectives.Library."""
        return np.zeros(n, np.float32)

    def resident(self, n: int) -> Any:
        """See collectives.Library: its windows are no arrays of all_reduce's."""

    def all_reduce(self, array: Any) -> None:
        """See collectives.Library."""
        self._world.Allreduce(self._in_place, array)

    def barrier(self) -> None:
        """See collectives.Library."""
        self._world.Barrier()

    def send(self, array: Any, to: int) -> None:
        """See collectives.Library."""
        self._world.Send(array, to)

    def recv(self, array: Any, of: int) -> None:
        """See collectives.Library."""
        self._world.Recv(array, of)


def start_ranks() -> None:
    """Becomes the `mpirun` that starts all ranks."""
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    how = ["--oversubscribe", "--bind-to", "none", "-n", str(collectives.plan().ranks)]
    os.execve(mpirun, [mpirun, *how, sys.executable, *sys.argv], {**os.environ, **AS_ROOT})


if __name__ == "__main__":
    if RANK not in os.environ:
        start_ranks()
    sys.argv += ["--rank", os.environ[RANK]]
    collectives.run(OpenMPI(), collectives.measure)
