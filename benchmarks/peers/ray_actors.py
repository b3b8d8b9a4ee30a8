"""Ray as one of the peers whose calls are measured: a callee is an actor."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
import ray


@ray.remote(num_cpus=0)
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

    def make(self) -> list[Any]:
        """Returns a reference to a value that stays here; in a list, or Ray would resolve it."""
        return [ray.put(measure.make())]

    def set_busy(self, on: bool) -> None:
        """Starts or stops what computes beside the calls."""
        measure.set_busy(on)


class Caller:
    """Calls the methods of actors."""

    def __init__(self, n: int) -> None:
        self._callees = [Callee.remote() for _ in range(n)]
        ray.get([callee.nothing.remote() for callee in self._callees])

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        ray.get(self._callees[callee].nothing.remote())

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        ray.get([self._callees[callee].nothing.remote() for callee in callees])

    async def awaited(self, callee: int) -> None:
        """See measure.Caller."""
        await self._callees[callee].nothing.remote()

    async def awaited_at_once(self, callees: list[int]) -> None:
        """See measure.Caller."""
        await asyncio.gather(*[self._callees[callee].nothing.remote() for callee in callees])

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller; what comes back is a read-only view of shared memory."""
        return ray.get(self._callees[0].echo.remote(array))

    async def other(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return ray.get(self._callees[0].other.remote(array))

    async def reference(self) -> measure.Made:
        """See measure.Caller."""
        value: measure.Made = ray.get(ray.get(self._callees[0].make.remote()))[0]
        return value

    async def references(self, n: int) -> list[measure.Made]:
        """See measure.Caller."""
        made = [self._callees[0].make.remote() for _ in range(n)]
        values: list[measure.Made] = ray.get([inner for (inner,) in ray.get(made)])
        return values

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        ray.get(self._callees[0].set_busy.remote(on))


def main() -> None:
    """Starts the callees, measures, and reports."""
    told = measure.plan()
    began = time.perf_counter()
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        num_cpus=told.workers,
        object_store_memory=2 * 2**30,
    )
    caller = Caller(told.workers - 1)
    startup = time.perf_counter() - began
    figures = measure.drive(measure.measure(caller, told))
    ray.shutdown()
    measure.report(ray.__version__, startup, figures)


if __name__ == "__main__":
    main()
