"""Monarch as one of the peers whose calls are measured: a callee is an actor in a process."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
from monarch.actor import Actor, endpoint, this_host


class Callee(Actor):  # type: ignore[misc]
    """What the other peers call as functions."""

    @endpoint
    def nothing(self) -> None:
        """Returns at once."""

    @endpoint
    def echo(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns what it is given."""
        return measure.echo(array)

    @endpoint
    def other(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns as much of its own."""
        return measure.other(array)

    @endpoint
    def set_busy(self, on: bool) -> None:
        """Starts or stops what computes beside the calls."""
        measure.set_busy(on)


class Caller:
    """Calls the endpoints of actors; there is nothing like a reference to a value."""

    def __init__(self, n: int) -> None:
        processes = this_host().spawn_procs({"callees": n})
        mesh = processes.spawn("callees", Callee)
        self._callees = [mesh.slice(callees=i) for i in range(n)]
        for callee in self._callees:
            callee.nothing.call_one().get()

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        self._callees[callee].nothing.call_one().get()

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        for each in [self._callees[callee].nothing.call_one() for callee in callees]:
            each.get()

    async def awaited(self, callee: int) -> None:
        """See measure.Caller."""
        await self._callees[callee].nothing.call_one()

    async def awaited_at_once(self, callees: list[int]) -> None:
        """See measure.Caller."""
        await asyncio.gather(
            *[_awaited(self._callees[callee].nothing.call_one()) for callee in callees]
        )

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return self._callees[0].echo.call_one(array).get()

    async def other(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return self._callees[0].other.call_one(array).get()

    async def reference(self) -> measure.Made:
        """See measure.Caller."""
        raise NotImplementedError

    async def references(self, n: int) -> list[measure.Made]:
        """See measure.Caller."""
        raise NotImplementedError

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        self._callees[0].set_busy.call_one(on).get()


async def _awaited(future: Any) -> None:
    await future


def main() -> None:
    """Starts the callees, measures, and reports."""
    told = measure.plan()
    began = time.perf_counter()
    caller = Caller(told.workers - 1)
    startup = time.perf_counter() - began
    figures = measure.drive(measure.measure(caller, told))
    measure.report(version("torchmonarch"), startup, figures)


if __name__ == "__main__":
    main()
