"""xoscar as one of the peers whose calls are measured: a callee is an actor in a process."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
import uvloop
import xoscar


class Callee(xoscar.Actor):  # type: ignore[misc]
    """What the other peers call as functions."""

    async def nothing(self) -> None:
        """Returns at once."""

    async def echo(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns what it is given."""
        return measure.echo(array)

    async def other(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns as much of its own."""
        return measure.other(array)

    async def set_busy(self, on: bool) -> None:
        """Starts or stops what computes beside the calls."""
        measure.set_busy(on)


class Value(xoscar.Actor):  # type: ignore[misc]
    """A value that stays where it is: the nearest to a reference that xoscar has."""

    async def get(self) -> measure.Made:
        """Returns it."""
        return measure.make()


class Caller:
    """Calls the methods of actors, from the loop of the pool's main process."""

    def __init__(self, callees: list[Any]) -> None:
        self._callees = callees

    async def call(self, callee: int) -> None:
        """See measure.Caller."""
        await self._callees[callee].nothing()

    async def calls(self, callees: list[int]) -> None:
        """See measure.Caller."""
        await asyncio.gather(*[self._callees[callee].nothing() for callee in callees])

    async def awaited(self, callee: int) -> None:
        """See measure.Caller; every call is awaited here."""
        await self.call(callee)

    async def awaited_at_once(self, callees: list[int]) -> None:
        """See measure.Caller."""
        await self.calls(callees)

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return await self._callees[0].echo(array)

    async def other(self, array: npt.NDArray[np.float32]) -> Any:
        """See measure.Caller."""
        return await self._callees[0].other(array)

    async def reference(self) -> measure.Made:
        """See measure.Caller."""
        made = await xoscar.create_actor(Value, address=self._callees[0].address)
        value: measure.Made = await made.get()
        await xoscar.destroy_actor(made)
        return value

    async def references(self, n: int) -> list[measure.Made]:
        """See measure.Caller."""
        address = self._callees[0].address
        made = await asyncio.gather(
            *[xoscar.create_actor(Value, address=address) for _ in range(n)]
        )
        values: list[measure.Made] = await asyncio.gather(*[each.get() for each in made])
        await asyncio.gather(*[xoscar.destroy_actor(each) for each in made])
        return values

    async def set_busy(self, on: bool) -> None:
        """See measure.Caller."""
        await self._callees[0].set_busy(on)


async def run(told: measure.Plan) -> tuple[float, dict[str, Any]]:
    """Starts the callees and measures."""
    began = time.perf_counter()
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=told.workers - 1)
    async with pool:
        callees = [
            await xoscar.create_actor(Callee, address=address) for address in pool.sub_processes
        ]
        startup = time.perf_counter() - began
        figures = await measure.measure(Caller(callees), told)
    return startup, figures


def main() -> None:
    """Runs it on the loop that xoscar's own processes use, and reports."""
    uvloop.install()
    startup, figures = asyncio.run(run(measure.plan()))
    measure.report(version("xoscar"), startup, figures)


if __name__ == "__main__":
    main()
