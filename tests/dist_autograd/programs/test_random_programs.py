"""Random programs of calls have the gradients of the same programs on one worker."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from telegrad.testing import Cluster, FaultPlan
from telegrad.testing.leaks import wait_until_gone
from tests.dist_autograd.programs.doom import Doom, doomed
from tests.dist_autograd.programs.losing_workers import run_until_lost
from tests.dist_autograd.programs.random_programs import (
    ARRIVES,
    LOSSES,
    RAISES,
    UNREAD,
    Cut,
    Gradients,
    Program,
    ProgramDrawer,
    local_gradients,
)
from tests.dist_autograd.programs.running_programs import open_contexts, run_mine
from tests.faults.network.network_plans import OPTIONS, a_bit_of_everything

# What a call that was given up does later may come when its context is left already.
pytestmark = pytest.mark.filterwarnings("ignore:a Tensor that needs a gradient")

FAST, LONG = 8, 1500  # cases
PATIENCE = 100.0  # seconds for one case on a machine that does many things


def examples(count: int) -> Callable[[Any], Any]:
    """The same programs at every run; a failing one is shown as it was drawn."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def assert_same(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys()
    for leaf, gradient in expected.items():
        np.testing.assert_allclose(found[leaf], gradient, rtol=1e-10, atol=1e-12, err_msg=str(leaf))


def check(cluster: Cluster, case: list[Program]) -> None:
    """Runs programs at once, and each of them alone."""
    workers = len(cluster.living)
    found = [each for part in cluster.run(run_mine, case, cluster.living) for each in part.items()]
    for i, gradients in found:
        assert_same(gradients, local_gradients(workers, case[i]))

    def left() -> list[str]:
        counts = cluster.run(open_contexts)
        return [f"{count} on {r}" for r, count in zip(cluster.living, counts, strict=True) if count]

    wait_until_gone("contexts", left)


def run_programs(cluster: Cluster, workers: int, count: int, first: int = 0) -> None:
    seeds = st.integers(first, first + 2**16)

    @examples(count)
    @given(at_once=st.integers(1, 3), calls=st.integers(0, 8), seed=seeds)
    def run(at_once: int, calls: int, seed: int) -> None:
        drawer = ProgramDrawer(workers, seed, calls)
        check(cluster, [drawer.program() for _ in range(at_once)])

    run()


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_gradients_equal_local_ones(workers: int) -> None:
    with Cluster(workers, options=OPTIONS) as cluster:
        run_programs(cluster, workers, FAST)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_gradients_of_many_programs_equal_local_ones(workers: int) -> None:
    with Cluster(workers, options=OPTIONS, limit=PATIENCE) as cluster:
        run_programs(cluster, workers, LONG, first=2**16)


# -- over a faulty network -------------------------------------------------------------------------

# Nothing is lost for good, so each message that strikes costs little: there is no end to it.
DISTURBED = FaultPlan(reorder=0.1, duplicate=0.1, delay=0.1, longest_delay=0.003)


def test_reordered_repeated_and_late_messages_change_no_gradient() -> None:
    with Cluster(3, options=OPTIONS, faults=DISTURBED) as cluster:
        run_programs(cluster, 3, FAST // 4)


LONG_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 22)]


@pytest.mark.parametrize("seed", [1, *LONG_SEEDS])
def test_lost_messages_and_broken_carriers_change_no_gradient(seed: int) -> None:
    """Each message that is lost is waited for until the next heartbeat, so there are few."""
    faults = a_bit_of_everything(seed, most=6)
    with Cluster(3, options=OPTIONS, faults=faults) as cluster:
        run_programs(cluster, 3, FAST // 4, first=seed * 1000)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(4))
def test_many_programs_over_a_disturbed_network(seed: int) -> None:
    faults = dataclasses.replace(DISTURBED, seed=seed, kill=0.01)
    with Cluster(4, options=OPTIONS, faults=faults, limit=PATIENCE) as cluster:
        run_programs(cluster, 4, LONG // 10, first=seed * 1000)


# -- a worker is lost ------------------------------------------------------------------------------

ONE_BY_ONE = (*[ARRIVES] * 9, RAISES, UNREAD)
MOMENTS = ("in a call", "before backward", "in backward")


def lose_a_worker(seed: int, moment: str) -> str:
    """Runs a program during which a worker is killed; returns what came of it.

    Which calls failed is taken from the run; then it is known what backward has to do: raise where
    a gradient has to go to the lost worker or comes from there, else find the local gradients of
    all other calls.
    """
    rng = random.Random(f"{seed} {moment}")
    workers = rng.randint(2, 4)
    program = ProgramDrawer(workers, seed, rng.randint(4, 10), ONE_BY_ONE).program()
    program = dataclasses.replace(program, task=False, passes=1, roots=LOSSES)
    lost = rng.choice([rank for rank in range(workers) if rank != program.origin])
    doom = Doom(
        lost,
        at_call=rng.randint(1, 3) if moment == "in a call" else 0,
        in_backward=moment == "in backward",
    )
    with Cluster(workers, options=OPTIONS) as cluster, ThreadPoolExecutor(1) as pool:
        doomed.append(doom)
        try:
            killer = pool.submit(kill, cluster, doom)
            before = moment == "before backward"
            outcome = cluster.call(program.origin, run_until_lost, program, workers, before)
        finally:
            doom.reached.set()  # else it would be waited for here, and nobody comes
            doom.done.wait(20.0)
            doomed.clear()
        killer.result()
    cut = Cut(lost if outcome.in_time else -1, outcome.failed)
    expected = local_gradients(workers, program, cut)
    late = outcome.was_lost and not outcome.in_time
    if outcome.error is not None:
        assert cut.reached or late
        assert outcome.gradients == {}
        return "raised"
    assert not cut.reached
    assert not (late and doom.in_backward)  # a gradient there was still being computed
    gone = lost if outcome.was_lost else -1
    assert_same(outcome.gradients, {leaf: g for leaf, g in expected.items() if leaf[0] != gone})
    return "lost" if outcome.was_lost else "nothing"


def kill(cluster: Cluster, doom: Doom) -> None:
    assert doom.reached.wait(60.0)
    cluster.kill(doom.rank)
    doom.done.set()


def lose_workers(seeds: range, moment: str) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen[lose_a_worker(seed, moment)] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, lost {moment}")
            raise
    assert seen["raised"], seen
    assert seen["lost"] or moment == "in backward", seen


@pytest.mark.parametrize("moment", MOMENTS)
def test_gradients_of_the_calls_that_succeeded(moment: str) -> None:
    lose_workers(range(6), moment)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("part", range(4))
def test_gradients_of_the_calls_that_succeeded_in_many_programs(moment: str, part: int) -> None:
    lose_workers(range(1000 + 100 * part, 1100 + 100 * part), moment)
