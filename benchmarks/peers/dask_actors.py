"""Dask (distributed) as one of the peers whose calls are measured: a callee is an actor of a worker."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import dask
import measure
import numpy as np
import numpy.typing as npt
from distributed import Client, LocalCluster


class Callee:
    """What the other peers call as functions."""

    def nothing(self) -> None:
        """Returns at once."""

    def echo(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns what it is given."""
        return measure.echo(array)

    def other(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns as much of its own."""
        return measure.other(array)

    def set_busy(self, on: bool) -> None:
        """Starts or stops what computes beside the calls."""
        measure.set_busy(on)


class Caller:
    """Calls the methods of actors; a reference is a future of the client's."""

    def __init__(self, client: Client, n: int) -> None:
        self._client = client
        self._workers = list(client.scheduler_info(n_workers=-1)["workers"])[:n]
        self._made = [
            client.submit(Callee, actor=True, workers=[worker], key=f"callee{i}")
            for i, worker in enumerate(self._workers)
        ]  # an actor ends with its future
        self._callees = [each.result() for each in self._made]
        for callee in self._callees:
            callee.nothing().result()

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        self._callees[callee].nothing().result()

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        for each in [self._callees[callee].nothing() for callee in callees]:
            each.result()

    async def awaited(self, callee: int) -> None:
        """See measure.Caller; only a client of that loop could, and this one has a loop of its own."""
        raise NotImplementedError

    async def awaited_at_once(self, callees: list[int]) -> None:
        """See measure.Caller."""
        raise NotImplementedError

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return self._callees[0].echo(array).result()

    async def other(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return self._callees[0].other(array).result()

    async def reference(self) -> measure.Made:
        """See measure.Caller."""
        return (await self.references(1))[0]

    async def references(self, n: int) -> list[measure.Made]:
        """See measure.Caller."""
        there = self._workers[:1]
        made = [self._client.submit(measure.make, workers=there, pure=False) for _ in range(n)]
        values: list[measure.Made] = self._client.gather(made)
        return values

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        self._callees[0].set_busy(on).result()


def main() -> None:
    """Starts the callees, measures, and reports."""
    told = measure.plan()
    began = time.perf_counter()
    dask.config.set({"distributed.admin.event-loop": "uvloop"})
    callees = told.workers - 1
    with (
        LocalCluster(n_workers=callees, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        caller = Caller(client, callees)
        startup = time.perf_counter() - began
        figures = measure.drive(measure.measure(caller, told))
    measure.report(version("distributed"), startup, figures)


if __name__ == "__main__":
    main()
