"""telegrad as one of the peers whose calls are measured, on one host or between two."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import tempfile
import time
from importlib.metadata import version
from typing import Any

import measure
import numpy as np
import numpy.typing as npt

from telegrad import doctor, rpc


class Caller:
    """Calls with the verbs of `telegrad.rpc`."""

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(callee + 1, measure.nothing)

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        rpc.wait_all([rpc.rpc_async(callee + 1, measure.nothing) for callee in callees])

    async def awaited(self, callee: int) -> None:
        """See measure.Caller."""
        await rpc.rpc_async(callee + 1, measure.nothing)

    async def awaited_at_once(self, callees: list[int]) -> None:
        """See measure.Caller."""
        await asyncio.gather(*[rpc.rpc_async(callee + 1, measure.nothing) for callee in callees])

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return rpc.rpc_sync(1, measure.echo, (array,))

    async def other(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return rpc.rpc_sync(1, measure.other, (array,))

    async def reference(self) -> measure.Made:
        """See measure.Caller."""
        return rpc.remote(1, measure.make).to_here()

    async def references(self, n: int) -> list[measure.Made]:
        """See measure.Caller."""
        made = [rpc.remote(1, measure.make) for _ in range(n)]
        return [each.to_here() for each in made]

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        rpc.rpc_sync(1, measure.set_busy, (on,))


def join(rank: int, workers: int, meet: str, options: rpc.RpcOptions) -> None:
    """Joins the job, as a callee or as the caller."""
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=workers, init_method=meet, options=options)


def serve(rank: int, workers: int, meet: str, options: rpc.RpcOptions) -> None:
    """A callee: serves until the caller shuts down."""
    join(rank, workers, meet, options)
    rpc.shutdown()


def transport(workers: int) -> str:
    """Returns what carried the calls; "" for more than one pair, which takes the doctor long."""
    return doctor.examine().pairs[0].transport if workers == 2 else ""


def measured(told: measure.Plan, meet: str, options: rpc.RpcOptions, began: float) -> None:
    """Joins as the caller, measures, and reports."""
    join(0, told.workers, meet, options)
    startup = time.perf_counter() - began
    figures = measure.drive(measure.measure(Caller(), told))
    carried = transport(told.workers)
    rpc.shutdown()
    measure.report(version("telegrad"), startup, figures, transport=carried)


def main(told: measure.Plan) -> None:
    """Starts the callees, measures, and reports."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        by_grpc = {"direct": False} if told.grpc else {}
        options = rpc.RpcOptions(token=secrets.token_hex(16), **by_grpc)
        meet = f"file://{directory}/store"
        processes = [
            spawn.Process(target=serve, args=(rank, told.workers, meet, options), daemon=True)
            for rank in range(1, told.workers)
        ]
        began = time.perf_counter()
        for process in processes:
            process.start()
        measured(told, meet, options, began)
        for process in processes:
            process.join()


def one_of(rank: int, told: measure.Plan) -> None:
    """One worker of several that are started elsewhere; the token is in the environment."""
    options = rpc.RpcOptions(insecure=told.insecure, direct=told.direct)
    if rank:
        serve(rank, told.workers, told.meet, options)
    else:
        measured(told, told.meet, options, time.perf_counter())


if __name__ == "__main__":
    told = measure.plan()
    if told.rank is None:
        main(told)
    else:
        one_of(told.rank, told)
