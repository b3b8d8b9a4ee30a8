"""References over a cut of the network: all that they raise, on both sides, is the loss of the owner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import OwnerLostError, WorkerLostError
from telegrad.rpc import RRef
from telegrad.testing import Cluster, FaultPlan
from telegrad.testing.leaks import wait_until_gone
from tests.faults.network.network_plans import CUT_OPTIONS
from tests.rpc.rref.programs import Model, gates, make_slowly

N = 3
NAMES = [f"worker{r}" for r in range(N)]
SECONDS = 20.0


def fetch(rref: RRef[Any]) -> Any:
    return rref.to_here()


def give(rref: RRef[Any]) -> RRef[Any]:
    return rref


class Numbers:
    def slowly(self) -> Iterator[int]:
        yield 1
        gates["cut"].wait(30)


async def awaited(rref: RRef[Any]) -> Any:
    return await rref


def the_other(rref: RRef[Any]) -> str:
    """Returns the worker that is neither this one nor the owner."""
    (name,) = {*NAMES} - {rpc.get_worker_info().name, rref.owner_name()}
    return name


# What a worker does with a reference to a Model whose owner it has lost.
VERBS: dict[str, Callable[[RRef[Any]], object]] = {
    "to_here": lambda rref: rref.to_here(),
    "await": lambda rref: asyncio.run(awaited(rref)),
    "a method": lambda rref: rref.rpc_sync().step(0.5),
    "a method, later": lambda rref: rref.rpc_async().step(0.5).wait(),
    "a method whose value stays": lambda rref: rref.remote().read().to_here(),
    "an attribute": lambda rref: rref.rpc_sync().steps,
    "a stream": lambda rref: list(rref.rpc_stream().read()),
    "passed to its owner": lambda rref: rpc.rpc_sync(rref.owner(), fetch, (rref,)),
    "passed to another": lambda rref: rpc.rpc_sync(the_other(rref), fetch, (rref,)),
    "made there": lambda rref: rpc.remote(rref.owner(), Model, (2,)).to_here(),
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    gates.clear()
    with Cluster(N, options=CUT_OPTIONS, faults=FaultPlan()) as cluster:
        yield cluster
        cluster.network.heal()


def error_of(func: Callable[[], object]) -> BaseException | None:
    try:
        func()
    except BaseException as error:
        return error
    return None


def check(found: dict[str, BaseException | None], expected: type[WorkerLostError]) -> None:
    others = {what: e for what, e in found.items() if not isinstance(e, expected)}
    assert not others


def references() -> dict[str, RRef[Any]]:
    """Returns references to values of each other worker, made here and received from a third."""
    me = rpc.get_worker_info().name
    found: dict[str, RRef[Any]] = {}
    for owner in NAMES:
        if owner == me:
            continue
        found[f"{owner}, made here"] = made = rpc.remote(owner, Model, (2,))
        (third,) = {*NAMES} - {me, owner}
        returned = rpc.rpc_sync(owner, give, (made,))
        found[f"{owner}, received"] = rpc.rpc_sync(third, give, (returned,))
        assert made.rpc_sync().step(0.5) == 1
    return found


def not_lost(cluster: Cluster, rank: int, other: str) -> list[str]:
    error = cluster.call(rank, error_of, lambda: rpc.rpc_sync(other, abs, (-1,)))
    return [] if isinstance(error, WorkerLostError) else [f"{other} to {rank}: {error}"]


def lost_of(rank: int) -> list[str]:
    """Returns the workers that one of this rank has lost: worker 1 is cut off from the others."""
    return ["worker0", "worker2"] if rank == 1 else ["worker1"]


def test_what_is_raised_once_the_owner_is_lost(cluster: Cluster) -> None:
    kept = cluster.run(references)
    cluster.network.partition("worker1")
    for rank in range(N):
        for other in lost_of(rank):
            wait_until_gone("worker", partial(not_lost, cluster, rank, other), within=30.0)

    def use_all() -> dict[str, BaseException | None]:
        rank = rpc.get_worker_info().rank
        return {
            f"{verb} on {rank} of {what}": error_of(partial(func, rref))
            for what, rref in kept[rank].items()
            if what.partition(",")[0] in lost_of(rank)
            for verb, func in VERBS.items()
        }

    for healed in (False, True):  # a loss is for good
        if healed:
            cluster.network.heal()
        for rank, found in enumerate(cluster.run(use_all)):
            assert len(found) >= 2 * len(VERBS)
            # The one that is alone may have heard that it was evicted.
            check(found, WorkerLostError if rank == 1 else OwnerLostError)
    assert not kept[0]["worker1, made here"].confirmed_by_owner()
    # What the owner is not lost for goes on.
    assert cluster.call(0, kept[0]["worker2, made here"].rpc_sync().step, 0.5) == 2


def test_what_waits_when_the_owner_is_lost(cluster: Cluster) -> None:
    """Fetches of a value that is still being made, methods of it, and what was passed on."""
    gate = gates.setdefault("cut", threading.Event())

    def start() -> dict[str, Any]:
        rank = rpc.get_worker_info().rank
        found: dict[str, Any] = {}  # futures
        for owner in lost_of(rank):
            made = rpc.remote(owner, make_slowly, ("cut", "value"), timeout=SECONDS)
            found[f"a method on {rank} of {owner}"] = made.rpc_async().upper()
            found[f"a call on {rank} to {owner}"] = rpc.rpc_async(owner, fetch, (made,))
            found[f"a call on {rank} to another"] = rpc.rpc_async(the_other(made), fetch, (made,))
            found[f"a fetch on {rank} of {owner}"] = rpc.to_thread(made.to_here)
            for name, stream in (
                ("a parked stream", made.rpc_stream().upper()),
                ("a stream", rpc.remote(owner, Numbers).rpc_stream().slowly()),
            ):
                found[f"{name} on {rank} of {owner}"] = rpc.to_thread(list, stream)
        return found

    waiting = cluster.run(start)
    cluster.network.partition("worker1")
    with ThreadPoolExecutor(8) as pool:
        for rank, futures in enumerate(waiting):
            errors = pool.map(error_of, [each.wait for each in futures.values()])
            found = dict(zip(futures, errors, strict=True))
            check(found, WorkerLostError)
            if rank != 1:
                uses = {what: e for what, e in found.items() if not what.startswith("a call")}
                check(uses, OwnerLostError)
    gate.set()
