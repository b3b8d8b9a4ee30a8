"""User code starts only when the owners have counted the RRefs that its call brought."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import CallTimeoutError, OwnerLostError
from telegrad.rpc import Future, RpcOptions, RRef, functions, seams
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster, FaultPlan
from telegrad.testing.leaks import wait_until_gone
from tests.rpc.rref.programs import (
    drained,
    gates,
    give_back,
    make_rref,
    make_slowly,
    read_value,
)

started: list[str] = []


def is_confirmed(rrefs: list[RRef[Any]]) -> bool:
    started.append("is_confirmed")
    return all(rref.confirmed_by_owner() for rref in rrefs)


async def is_confirmed_later(rrefs: list[RRef[Any]]) -> bool:
    return all(rref.confirmed_by_owner() for rref in rrefs)


@functions.async_execution
def is_confirmed_then(rrefs: list[RRef[Any]]) -> Future[bool]:
    future: Future[bool] = Future()
    future.set_result(all(rref.confirmed_by_owner() for rref in rrefs))
    return future


class Checker:
    def __init__(self, rrefs: list[RRef[Any]]) -> None:
        self.at_birth = all(rref.confirmed_by_owner() for rref in rrefs)

    def check(self, rrefs: list[RRef[Any]]) -> bool:
        return self.at_birth and all(rref.confirmed_by_owner() for rref in rrefs)


@pytest.fixture
def cut() -> Iterator[Cluster]:
    """Four workers whose network can be cut; no reference may be left when the test has ended."""
    started.clear()
    gates.clear()
    options = RpcOptions(timeout=20.0)
    with Cluster(4, options=options, faults=FaultPlan()) as made:
        yield made
        made.network.heal()
        drained(made)


@pytest.fixture
def theirs(cut: Cluster) -> Iterator[RRef[str]]:
    """A value on worker1, which then is cut off from worker2; the test runs on worker0."""
    with seams.use_agent(cut.call(0, seams.current_agent)):
        with rpc.remote("worker1", str, ("one",)) as made:
            assert made.to_here() == "one"
            cut.network.partition("worker1", "worker2")
            yield made


def answered(cluster: Cluster, r: int) -> None:
    """Waits until a worker serves no calls."""
    assert cluster.call(r, current_agent).drain(time.monotonic() + 20.0)


def parked(cluster: Cluster, r: int) -> None:
    """Waits until a worker has decoded a call that it does not start yet."""

    def missing() -> list[str]:
        return [] if cluster.call(r, rpc.statistics).user_rrefs else ["an argument"]

    wait_until_gone("wait for", missing)
    cluster.call(r, rpc.rpc_sync, f"worker{r}", give_back, (1,))  # the pool goes on


@pytest.mark.parametrize("func", [is_confirmed, is_confirmed_later, is_confirmed_then])
def test_what_arrives_is_confirmed(worker0: None, func: Callable[..., bool]) -> None:
    gates["slow"] = threading.Event()
    mine, theirs = RRef("zero"), rpc.remote("worker1", str, ("one",))
    pending = rpc.remote("worker1", make_slowly, ("slow", "two"))  # its creator need not wait
    for _ in range(8):
        given = rpc.rpc_sync("worker1", make_rref, ("three",))
        assert rpc.rpc_sync("worker2", func, ([mine, theirs, given],))
        assert rpc.rpc_sync("worker2", func, ([pending, pending],))
        checker = rpc.remote("worker2", Checker, ([theirs, pending],))
        assert checker.rpc_sync().check([given, pending])
    gates["slow"].set()
    assert pending.to_here() == "two"


def test_nothing_starts_before_the_owner_has_counted(cut: Cluster, theirs: RRef[str]) -> None:
    made = rpc.remote("worker2", Checker, ([theirs],))
    future = rpc.rpc_async("worker2", is_confirmed, ([theirs],))
    parked(cut, 2)
    assert not started
    assert not future.done()
    assert not made.confirmed_by_owner()
    cut.network.heal()
    assert future.wait()
    assert made.rpc_sync().check([])
    assert started == ["is_confirmed"]


def test_a_parked_call_ends_at_its_deadline(cut: Cluster, theirs: RRef[str]) -> None:
    with pytest.raises(CallTimeoutError):
        rpc.rpc_sync("worker2", is_confirmed, ([theirs],), timeout=0.2)
    never_starts(cut, theirs)


def test_a_parked_call_is_cancelled(cut: Cluster, theirs: RRef[str]) -> None:
    future = rpc.rpc_async("worker2", is_confirmed, ([theirs],))
    parked(cut, 2)
    assert future.cancel()
    del future
    never_starts(cut, theirs)


def never_starts(cut: Cluster, theirs: RRef[str]) -> None:
    """Says so once nothing is left of the call."""
    answered(cut, 2)
    cut.network.heal()
    theirs.release()
    drained(cut)
    assert not started


def test_a_parked_call_hears_of_the_loss_of_the_owner(cut: Cluster, theirs: RRef[str]) -> None:
    """It does not start: the RRef that it brought will never be confirmed."""
    future = rpc.rpc_async("worker2", is_confirmed, ([theirs],))
    made = rpc.remote("worker2", Checker, ([theirs],))
    parked(cut, 2)
    cut.kill(1)
    cut.network.heal()
    for use in (future.wait, made.to_here, theirs.to_here):
        with pytest.raises(OwnerLostError, match="worker1"):
            use()
    assert not made.confirmed_by_owner()
    assert not started


def test_a_creation_that_never_starts_tells_whoever_waits_for_its_value(
    cut: Cluster, theirs: RRef[str]
) -> None:
    """A third worker's fetch of it is parked at the worker that will never create it."""
    made = rpc.remote("worker2", Checker, ([theirs],))
    fetched = rpc.rpc_async("worker3", read_value, (made,))
    parked(cut, 2)
    cut.kill(1)
    cut.network.heal()
    with pytest.raises(OwnerLostError, match="worker1"):
        fetched.wait()
