"""torch.distributed.rpc as one of the peers that benchmarks/rpc.py measures."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import rpc


class Caller:
    """Calls with the verbs of `torch.distributed.rpc`."""

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(callee + 1, measure.nothing)

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        torch.futures.wait_all([rpc.rpc_async(callee + 1, measure.nothing) for callee in callees])

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller; a tensor travels beside the pickle, an array would be in it."""
        return rpc.rpc_sync(1, measure.echo, (torch.from_numpy(array),))

    async def reference(self) -> int:
        """See measure.Caller."""
        value: int = rpc.remote(1, measure.make).to_here()
        return value

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(1, measure.set_busy, (on,))


def join(rank: int, workers: int, store: Path) -> None:
    """Joins the job, as a callee or as the caller."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # it is in maintenance, and says so
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=workers,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}"),
    )


def serve(rank: int, workers: int, store: Path) -> None:
    """A callee: serves until the caller shuts down."""
    join(rank, workers, store)
    rpc.shutdown()


def main() -> None:
    """Starts the callees, measures, and reports."""
    told = measure.plan()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        job = (told.workers, Path(directory) / "store")
        processes = [
            spawn.Process(target=serve, args=(rank, *job), daemon=True)
            for rank in range(1, told.workers)
        ]
        began = time.perf_counter()
        for process in processes:
            process.start()
        join(0, *job)
        startup = time.perf_counter() - began
        figures = measure.drive(measure.measure(Caller(), told))
        rpc.shutdown()
        for process in processes:
            process.join()
    measure.report(torch.__version__, startup, figures)


if __name__ == "__main__":
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # else it asks the name of this host
    main()
