"""What a call of this worker waits for is seen: behind futures, tasks and what asyncio has."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st

from telegrad import rpc
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call.pending_call import PendingCall
from telegrad.rpc.deadlock.graph import (
    MAX_COMBINATIONS,
    Stamps,
    limited,
    served_id,
    wait_of,
    ways,
)
from telegrad.rpc.future.waits import Wait, comes_from
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


# -- what a task waits for ------------------------------------------------------------------------


async def awaited(awaitable: Any) -> object:
    return await awaitable


def task(awaitable: Any) -> asyncio.Task[object]:
    return asyncio.create_task(awaited(awaitable))


async def all_tasks(a: Any, b: Any, other: Any) -> object:
    return await asyncio.wait([task(a), task(b), task(turn())])


async def first_task(a: Any, b: Any, other: Any) -> object:
    return await asyncio.wait([task(a), task(b)], return_when=asyncio.FIRST_COMPLETED)


async def some_task_in_time(a: Any, b: Any, other: Any) -> object:
    return await asyncio.wait([task(a)], timeout=60)


async def first_completed(a: Any, b: Any, other: Any) -> object:
    return [done async for done in rpc.as_completed([a, b])]


async def group(a: Any, b: Any, other: Any) -> object:
    async with asyncio.TaskGroup() as tasks:
        for each in (a, b, turn()):
            tasks.create_task(awaited(each))
    return None


async def inside_a_group(a: Any, b: Any, other: Any) -> object:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(awaited(other))
        return await asyncio.gather(asyncio.shield(a))


def within(limit: float | None) -> Callable[..., Awaitable[object]]:
    async def wait(a: Any, b: Any, other: Any) -> object:
        async with asyncio.timeout(limit):
            return await asyncio.shield(a)

    return wait


# Of a function that waits for the calls a and b, and for something else: the calls that nobody may
# end if it is never to go on, one set of them for each condition.
WAITS: dict[str, tuple[Callable[..., Awaitable[object]], list[str]]] = {
    "await": (lambda a, b, other: awaited(a), ["a"]),
    "a task": (lambda a, b, other: task(task(a)), ["a"]),
    "shield": (lambda a, b, other: asyncio.gather(asyncio.shield(task(a))), ["a"]),
    "what follows": (lambda a, b, other: a.then(rpc.Future.value).then(rpc.Future.value), ["a"]),
    "collect_all": (lambda a, b, other: rpc.collect_all([a, b, other]), ["a", "b"]),
    "first_n": (lambda a, b, other: rpc.first_n([a, b.then(rpc.Future.value)], 1), ["ab"]),
    "first_n of another": (lambda a, b, other: rpc.first_n([a, other], 1), []),
    "as_completed": (first_completed, ["ab"]),
    "gather": (lambda a, b, other: asyncio.gather(a, awaited(b), turn()), ["ab"]),
    "gather in gather": (
        lambda a, b, other: asyncio.gather(a, asyncio.gather(awaited(a), a, b)),
        ["ab"],
    ),
    "gather of another": (lambda a, b, other: asyncio.gather(a, other), []),
    "wait": (all_tasks, ["a", "b"]),
    "wait for the first": (first_task, ["ab"]),
    "wait for a while": (some_task_in_time, []),
    "a group": (group, ["ab"]),
    "inside a group": (inside_a_group, []),
    "wait_for without a limit": (lambda a, b, other: asyncio.wait_for(a, None), ["a"]),
    "wait_for": (lambda a, b, other: asyncio.wait_for(asyncio.shield(a), 60), []),
    "timeout without a limit": (within(None), ["a"]),
    "timeout": (within(60), []),
    "timeout in a task": (lambda a, b, other: asyncio.gather(within(60)(a, b, other)), []),
    "sleep": (lambda a, b, other: asyncio.gather(asyncio.sleep(60)), []),
}


@pytest.mark.parametrize("how", WAITS)
def test_what_a_task_waits_for_is_seen(how: str) -> None:
    function, expected = WAITS[how]

    async def main() -> None:
        futures: list[rpc.Future[Any]] = [rpc.Future() for _ in range(3)]
        record = CallRecord("f")
        for number, future in enumerate(futures[:2]):
            call = PendingCall(OTHER, record, None, 0.0, math.inf, values=True, number=number)
            call.future = future
            comes_from(future, call)
        asks = ServedCall("w1", OTHER, 99, CallRecord("rpc.call"), math.inf, 0)
        asks.runner = task(function(*futures))
        await turn(5)
        stamps = Stamps()
        first, again = (ways(ME, asks, lambda _: True, stamps, to_be_sure=True) for _ in range(2))
        assert first == again  # or no circle would ever be confirmed
        seen = ["".join(sorted("ab"[to.number] for to, _ in each.branches)) for each in first]
        assert sorted(seen) == expected
        for each in first:
            assert all(not future.done() for future in each.breaks)
            assert each.breaks
        for future in futures:
            future.set_result(None)
        asks.runner.cancel()
        await asyncio.wait([asks.runner])

    asyncio.run(main())


def test_what_wakes_a_task_has_a_number_of_its_own() -> None:
    async def main() -> None:
        stamps = Stamps()
        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
        assert stamps.of(first) == stamps.of(first) != stamps.of(second)
        task = asyncio.current_task()
        assert task is not None
        assert wait_of(task) is None  # it runs

    asyncio.run(main())


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
