"""telegrad as one of the peers that benchmarks/rpc.py measures."""

from __future__ import annotations

import multiprocessing
import secrets
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt

from telegrad import rpc


class Caller:
    """Calls with the verbs of `telegrad.rpc`."""

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(callee + 1, measure.nothing)

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        rpc.wait_all([rpc.rpc_async(callee + 1, measure.nothing) for callee in callees])

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return rpc.rpc_sync(1, measure.echo, (array,))

    async def reference(self) -> int:
        """See measure.Caller."""
        return rpc.remote(1, measure.make).to_here()

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(1, measure.set_busy, (on,))


def join(rank: int, workers: int, store: Path, token: str) -> None:
    """Joins the job, as a callee or as the caller."""
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=workers,
        init_method=f"file://{store}",
        options=rpc.RpcOptions(token=token),
    )


def serve(rank: int, workers: int, store: Path, token: str) -> None:
    """A callee: serves until the caller shuts down."""
    join(rank, workers, store, token)
    rpc.shutdown()


def main() -> None:
    """Starts the callees, measures, and reports."""
    told = measure.plan()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        job = (told.workers, Path(directory) / "store", secrets.token_hex(16))
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
    measure.report(version("telegrad"), startup, figures)


if __name__ == "__main__":
    main()
