"""Programs over a network that loses, repeats, reorders, delays, breaks and cuts.

What they return is what they return over a sound one. The faults are those of a seed, which stands
in the name of the test; `make test-long` tries many.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import CallTimeoutError, WorkerLostError
from telegrad.rpc.seams import reference_of
from telegrad.testing import (
    Cluster,
    Fault,
    FaultPlan,
    FaultRule,
    FaultyNetwork,
    faulty_network,
    leaks,
    no_leaked_references,
)
from tests.faults.network import network_programs as programs
from tests.faults.network.network_plans import CUT_OPTIONS, OPTIONS, a_bit_of_everything
from tests.faults.network.network_programs import PROGRAMS
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import (
    add,
    call_everybody,
    calls_lost,
    gradient_over,
)
from tests.patience import with_more_time

N = 3
# Over processes; the others run there in `make test-long`.
QUICK = ("calls", "references", "gradients", "collective_operations")


@pytest.fixture(scope="module")
def expected() -> Callable[[str], list[Any]]:
    """What the programs return over a sound network, each run once."""
    found: dict[str, list[Any]] = {}

    def of(name: str) -> list[Any]:
        if name not in found:
            with Cluster(N, options=OPTIONS) as cluster:
                found[name] = cluster.run(PROGRAMS[name])
        return found[name]

    return of


def faults_so_far() -> int:
    return faulty_network().statistics().faults


# -- by chance ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # In make test the quick ones run over processes, with the same seed.
        pytest.param(name, seed, marks=pytest.mark.long if seed > 1 or name in QUICK else ())
        for seed in (1, *range(3, 23))
        for name in PROGRAMS
    ],
)
@pytest.mark.few(2)
def test_results_equal_those_over_a_sound_network(
    name: str, seed: int, expected: Callable[[str], list[Any]]
) -> None:
    with Cluster(N, options=OPTIONS, faults=a_bit_of_everything(seed)) as cluster:
        with no_leaked_references(cluster):
            assert cluster.run(PROGRAMS[name]) == expected(name), repr(cluster.network)
        assert cluster.network.statistics().faults > 0


@pytest.mark.parametrize(
    ("seed", "names"),
    [
        (1, QUICK),
        *(pytest.param(seed, PROGRAMS, marks=pytest.mark.long) for seed in (1, *range(3, 8))),
    ],
    ids=["1", "1, every program", *(str(seed) for seed in range(3, 8))],
)
@pytest.mark.long
def test_results_equal_those_over_sound_processes(
    seed: int, names: Iterable[str], expected: Callable[[str], list[Any]]
) -> None:
    plan = a_bit_of_everything(seed, most=8)
    with Cluster(N, processes=True, options=OPTIONS, faults=plan) as cluster:
        for name in names:
            assert cluster.run(PROGRAMS[name]) == expected(name), f"{name} over {plan!r}"
        assert all(cluster.run(faults_so_far))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["drop", "duplicate", "reorder", "kill", "delay"])
@pytest.mark.parametrize("seed", range(3))
def test_one_fault_without_end(fault: str, seed: int, expected: Callable[[str], list[Any]]) -> None:
    """A big part whose last chunk is lost is missed when its lanes have stood still for 60 s."""
    plan = FaultPlan(seed=seed, **{fault: 0.02})  # type: ignore[arg-type]
    with Cluster(N, options=dataclasses.replace(OPTIONS, timeout=300.0), faults=plan) as cluster:
        for name, program in PROGRAMS.items():
            assert cluster.run(program) == expected(name), f"{name} over {cluster.network!r}"


# -- at a kind of envelope ---------------------------------------------------------------------

KINDS = {
    "rpc.call": "calls",
    "rpc.reply": "calls",
    "rpc.error": "failing_calls",
    "rpc.remote": "references",
    "rref.call": "each_call_runs_once",
    "rref.fetch": "references",
    "rref.fork_request": "references",
    "rref.fork_confirm": "references",
    "rref.child_accept": "references",
    "rref.user_delete": "references",
    "autograd.pass": "gradients",
    "autograd.release": "gradients",
    "collectives.push": "collective_operations",
    "collectives.ready": "collective_operations",
    "member.join": "calls",
    "heartbeat": "gradients",
}


TWICE = (Fault.KILL, Fault.KILL_AFTER, Fault.DROP, Fault.DUPLICATE, Fault.REORDER)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "both",
    [
        (Fault.KILL, Fault.KILL_AFTER),
        *(pytest.param((fault, fault), marks=pytest.mark.long) for fault in TWICE),
    ],
    ids=lambda both: ", ".join(fault.value for fault in both),
)
@pytest.mark.few(6)
def test_faults_at_a_kind(
    kind: str, both: tuple[Fault, Fault], expected: Callable[[str], list[Any]]
) -> None:
    """They strike each worker's first and second of a kind; what was lost is sent again."""
    name = KINDS[kind]
    rules = [
        FaultRule(fault, kind, at=at, sender=f"worker{r}")
        for r in range(N)
        for at, fault in enumerate(both, start=1)
    ]
    with Cluster(N, options=OPTIONS, faults=FaultPlan(rules=rules)) as cluster:
        assert cluster.run(PROGRAMS[name]) == expected(name)
        assert cluster.network.statistics().faults >= 2


def test_every_carrier_breaks_at_its_tenth_message(
    expected: Callable[[str], list[Any]],
) -> None:
    """Progress is made by ten messages at a time, for as long as it takes."""
    rule = FaultRule(Fault.KILL, at=10, times=None, each_carrier=True)
    with Cluster(N, options=OPTIONS, faults=FaultPlan(rules=[rule])) as cluster:
        for name in ("calls", "references", "gradients"):
            assert cluster.run(PROGRAMS[name]) == expected(name)
        assert cluster.network.statistics().killed > 10


def makes_too_late(network: FaultyNetwork, seconds: float) -> Failure:
    """Asks for a value within a time that ends while the request is lost; another fetches it."""

    def make_and_fetch() -> int:
        made = rpc.remote("worker1", add, (1, 2), timeout=seconds)
        creation = reference_of(made).creation
        fetched = rpc.rpc_async("worker2", fetch, (made,))
        assert creation is not None
        leaks.wait_until_gone("time", lambda: [] if creation.done() else ["some"], seconds + 20.0)
        network.kill("worker0", "worker1")  # what was held up is lost, and sent again
        network.heal()
        return fetched.wait()

    network.partition("worker0", "worker1")
    try:
        return failure_of(make_and_fetch)
    finally:
        network.heal()


def fetch(reference: rpc.RRef[int]) -> int:
    return reference.to_here()


def test_a_request_that_comes_after_its_deadline_is_a_timeout_to_all() -> None:
    """To whoever fetched the value it was a LookupError: the request had not been run."""
    with Cluster(N, options=OPTIONS, faults=FaultPlan()) as cluster:
        cluster.run(call_everybody)

        def attempt(seconds: float) -> None:
            with no_leaked_references(cluster):
                failure = cluster.call(0, makes_too_late, cluster.network, seconds)
                failure.check(
                    CallTimeoutError, "given up by 'worker0'", "'worker1'", within=math.inf
                )

        with_more_time(attempt, 0.2, 2.0, 8.0)  # so that its reference is sent in time


# -- cuts --------------------------------------------------------------------------------------


def test_a_cut_that_is_healed_in_time_is_only_a_delay(pool: ThreadPoolExecutor) -> None:
    with Cluster(N, options=OPTIONS, faults=FaultPlan()) as cluster:
        assert cluster.run(call_everybody) == [["worker0", "worker1", "worker2"]] * N
        for cut in (("worker0", "worker1"), ("worker1",), ("worker*",), ()):
            cluster.network.partition(*cut)
            held = cluster.network.statistics().held
            running = pool.submit(cluster.run, programs.gradients)
            leaks.wait_until_gone("cut", partial(not_held_yet, cluster.network, held))
            assert not running.done()
            cluster.network.heal()
            running.result()


def not_held_yet(network: FaultyNetwork, before: int) -> list[str]:
    return [] if network.statistics().held > before else [repr(network)]


@pytest.mark.parametrize("cut", [("worker2",), ("worker1", "worker2")], ids=repr)
def test_a_reduction_over_a_cut_that_lasts_raises_on_every_rank(
    cut: tuple[str, ...], pool: ThreadPoolExecutor
) -> None:
    """Also on the one that could talk with both others. Who can still meet goes on."""
    with Cluster(N, options=CUT_OPTIONS, faults=FaultPlan()) as cluster:
        cluster.run(programs.meet)
        cluster.network.partition(*cut)
        for failure in cluster.run(programs.all_reduce_fails):
            failure.check(WorkerLostError, "silent for", "all_reduce", within=math.inf)
        going_on = [
            pool.submit(cluster.call, r, programs.all_reduce_among, [0, 1]) for r in range(2)
        ]
        assert [each.result() for each in going_on] == [2.0, 2.0]
        cluster.network.heal()


def test_who_is_cut_off_from_the_coordinator_is_evicted_by_it() -> None:
    """The others hear it from the coordinator, though they could still talk with it."""
    with Cluster(N, options=CUT_OPTIONS, faults=FaultPlan()) as cluster:
        cluster.run(call_everybody)
        cluster.network.partition("worker2", "coordinator")
        for rank in (0, 1):
            not_lost = partial(not_yet, cluster, rank, "worker2", "WorkerLostError")
            leaks.wait_until_gone("worker", not_lost, within=30.0)
            assert cluster.call(rank, gradient_over, f"worker{1 - rank}") == [2.0] * 3
        cluster.network.heal()


def not_yet(cluster: Cluster, rank: int, to: str, *errors: str) -> list[str]:
    """Returns how a call ended if it was in none of these errors."""
    failure = cluster.call(rank, calls_lost, to)
    return [] if failure.kind.rpartition(":")[2] in errors else [failure.text]
