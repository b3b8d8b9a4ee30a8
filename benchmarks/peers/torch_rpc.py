"""torch.distributed.rpc as one of the peers whose calls are measured, on one host or between two."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import warnings
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import rpc


class Caller:
    """Calls with the verbs of `torch.distributed.rpc`, whose futures no event loop awaits."""

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(callee + 1, measure.nothing)

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        torch.futures.wait_all([rpc.rpc_async(callee + 1, measure.nothing) for callee in callees])

    async def awaited(self, callee: int) -> None:
        """See measure.Caller."""
        raise NotImplementedError

    async def awaited_at_once(self, callees: list[int]) -> None:
        """See measure.Caller."""
        raise NotImplementedError

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller; a tensor travels beside the pickle, an array would be in it."""
        return rpc.rpc_sync(1, measure.echo, (torch.from_numpy(array),))

    async def other(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return rpc.rpc_sync(1, measure.other, (torch.from_numpy(array),))

    async def reference(self) -> measure.Made:
        """See measure.Caller."""
        value: measure.Made = rpc.remote(1, measure.make).to_here()
        return value

    async def references(self, n: int) -> list[measure.Made]:
        """See measure.Caller."""
        made = [rpc.remote(1, measure.make) for _ in range(n)]
        return [each.to_here() for each in made]

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(1, measure.set_busy, (on,))


def join(rank: int, workers: int, meet: str, *, between_hosts: bool) -> None:
    """Joins the job, as a callee or as the caller.

    Between hosts all goes over TCP: network namespaces of one machine look to torch like one host,
    and it would try the memory that they share.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # it is in maintenance, and says so
    tcp = {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]} if between_hosts else {}
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=workers,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=meet, **tcp),
    )


def serve(rank: int, workers: int, meet: str, between_hosts: bool) -> None:
    """A callee: serves until the caller shuts down."""
    join(rank, workers, meet, between_hosts=between_hosts)
    rpc.shutdown()


def measured(told: measure.Plan, meet: str, began: float, *, between_hosts: bool) -> None:
    """Joins as the caller, measures, and reports."""
    join(0, told.workers, meet, between_hosts=between_hosts)
    startup = time.perf_counter() - began
    figures = measure.drive(measure.measure(Caller(), told))
    rpc.shutdown()
    measure.report(torch.__version__, startup, figures)


def main(told: measure.Plan) -> None:
    """Starts the callees, measures, and reports."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        meet = f"file://{directory}/store"
        processes = [
            spawn.Process(target=serve, args=(rank, told.workers, meet, False), daemon=True)
            for rank in range(1, told.workers)
        ]
        began = time.perf_counter()
        for process in processes:
            process.start()
        measured(told, meet, began, between_hosts=False)
        for process in processes:
            process.join()


def one_of(rank: int, told: measure.Plan) -> None:
    """One worker of several that are started elsewhere."""
    if rank:
        serve(rank, told.workers, told.meet, between_hosts=True)
    else:
        measured(told, told.meet, time.perf_counter(), between_hosts=True)


if __name__ == "__main__":
    told = measure.plan()
    if told.rank is None:
        os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # else it asks the name of this host
        main(told)
    else:
        for which in ("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            os.environ.setdefault(which, "eth0")
        one_of(told.rank, told)
