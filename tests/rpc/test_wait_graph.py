"""What a call of this worker waits for is seen: behind futures, tasks and what asyncio has."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from telegrad import rpc
from telegrad.rpc.call.interceptor import CallRecord
from telegrad.rpc.call.served_call import ServedCall
from telegrad.rpc.deadlock.graph import (
    MAX_COMBINATIONS,
    Stamps,
    behind,
    limited,
    served_id,
    wait_of,
    ways,
)
from telegrad.rpc.future.waits import AwaitedFuture, Wait, comes_from
from telegrad.types import WorkerInfo
from tests.repeated import on_examples
from tests.rpc.turns import turn

ME, OTHER = WorkerInfo("w0", 0, 100), WorkerInfo("w1", 1, 101)


@dataclass
class Local:
    """Futures of one worker that come from each other, and at last from calls or from nothing."""

    chance: random.Random
    keeps: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        record = CallRecord("rpc.call")
        self.calls = [ServedCall("w1", OTHER, n, record, math.inf, 0) for n in range(4)]
        self.needs: dict[int, tuple[str, list[object]]] = {}  # by future
        self.futures: list[rpc.Future[None]] = []
        for _ in range(self.chance.randint(1, 8)):
            self.futures.append(self.future())

    def future(self) -> rpc.Future[None]:
        made: rpc.Future[None] = rpc.Future()
        things = [*self.futures, *self.futures, *self.calls]
        kind = self.chance.choice(["all", "any", "one", "one", "nothing"])
        count = 1 if kind == "one" else self.chance.randint(1, 3)
        picked: list[object] = [self.chance.choice(things) for _ in range(count)]
        if kind == "nothing":
            picked = []
        elif kind == "one":
            comes_from(made, picked[0])
        else:
            futures = [each if isinstance(each, rpc.Future) else self.of(each) for each in picked]
            comes_from(made, tuple(futures) if kind == "all" else Wait(tuple(futures)))
        self.needs[id(made)] = (kind, picked)
        return made

    def of(self, call: object) -> rpc.Future[None]:
        made: rpc.Future[None] = rpc.Future()
        comes_from(made, call)
        self.keeps.append(made)
        return made

    def is_stuck(self, thing: object, stuck: set[object]) -> bool:
        if isinstance(thing, ServedCall):
            return thing in stuck
        kind, things = self.needs[id(thing)]
        each = [self.is_stuck(one, stuck) for one in things]
        return any(each) if kind == "all" else bool(each) and all(each)


@on_examples(st.randoms(use_true_random=True))
def test_what_is_seen_of_futures_is_what_they_need(chance: random.Random) -> None:
    """Whichever calls never end: it is stuck if one of its ways leads to no others than those."""
    local = Local(chance)
    asks = ServedCall("w1", OTHER, 99, CallRecord("rpc.call"), math.inf, 0)
    asks.runner = local.futures[-1]
    found = ways(ME, asks, lambda _: True, Stamps())
    for count in range(len(local.calls) + 1):
        for stuck in itertools.combinations(local.calls, count):
            names = {served_id(ME, call) for call in stuck}
            seen = any(names.issuperset(branch.to for branch in way.branches) for way in found)
            if seen or len(found) < MAX_COMBINATIONS:  # else not all are looked at
                assert seen == local.is_stuck(asks.runner, set(stuck))


def test_what_asyncio_waits_for_is_seen() -> None:
    async def main() -> None:
        future: rpc.Future[None] = rpc.Future()
        waits = asyncio.create_task(_awaits(future))
        both = asyncio.gather(waits, asyncio.shield(asyncio.sleep(60)))
        outer = asyncio.create_task(_awaits(both))
        runs = asyncio.current_task()
        await turn(2)
        assert runs is not None
        assert wait_of(runs) is None
        wait = wait_of(waits)
        assert wait is not None
        assert isinstance(wait.waker, AwaitedFuture)
        assert wait.waker.wait.futures == (future,)
        wait = wait_of(outer)
        assert wait is not None
        assert wait.waker is both
        first, second = wait.things
        assert first is waits
        assert isinstance(second, asyncio.Future)
        assert behind(asyncio.gather(future)) == (future,)
        assert behind(asyncio.shield(future)) == (future,)
        (sleeps,) = behind(second)
        assert isinstance(sleeps, asyncio.Task)
        assert wait_of(sleeps) is None  # by itself
        stamps = Stamps()
        assert stamps.of(wait.waker) == stamps.of(both) != stamps.of(waits)
        future.set_result(None)
        outer.cancel()
        sleeps.cancel()
        await asyncio.wait([outer, sleeps])

    asyncio.run(main())


async def _awaits(awaitable: Awaitable[object]) -> object:
    return await awaitable


def test_scopes_that_may_end_a_wait_are_seen() -> None:
    class Scope:
        def __init__(self, task: object) -> None:
            self.tasks = {task}

    Scope.__module__ = "anyio.backends"

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        assert not limited([task])
        async with asyncio.TaskGroup() as group:
            assert limited([task])
            assert not limited([task], [group])
            inside = group.create_task(is_limited())
            assert await inside  # as another task of the group may fail
            assert not await group.create_task(is_limited(group))
        del group, inside
        assert not limited([task])
        async with asyncio.timeout(None):
            await turn()
            assert not limited([task])
        async with asyncio.timeout(60):
            await turn()
            assert limited([task])
        scope = Scope(task)
        assert limited([task])
        del scope
        assert not limited([task])

    async def is_limited(*groups: asyncio.TaskGroup) -> bool:
        task = asyncio.current_task()
        assert task is not None
        return limited([task], groups)

    asyncio.run(main())
