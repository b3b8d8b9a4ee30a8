"""`make chaos` itself: a seed is a plan, and two short runs of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import chaos, chaos_hosts
from telegrad import collectives
from telegrad.testing import Cluster
from tests.chaos import work
from tests.collectives.api import test_objects
from tests.collectives.promises.test_programs import VERBS

SCRIPT = Path(chaos.__file__)


def test_a_seed_is_a_plan() -> None:
    plans = [chaos.plan_of(seed) for seed in range(200)]
    assert plans == [chaos.plan_of(seed) for seed in range(200)]
    assert {plan.network for plan in plans} == set(chaos.NETWORKS)
    for plan in plans:
        kills = [event.rank for event in plan.events if event.kind == "kill"]
        others = [event.rank for event in plan.events if event.kind != "kill"]
        assert len(kills) <= 1, plan
        assert set(kills).isdisjoint(others), plan
        assert all(event.at + event.seconds < plan.seconds for event in plan.events)
        assert str(plan).startswith(f"seed {plan.seed}: ")


def test_a_seed_is_a_plan_of_hosts() -> None:
    plans = [chaos_hosts.plan_of(seed) for seed in range(200)]
    assert plans == [chaos_hosts.plan_of(seed) for seed in range(200)]
    assert {len({*plan.places}) for plan in plans} == {2, 3}
    assert {plan.insecure for plan in plans} == {False, True}
    kinds = {event.kind for plan in plans for event in plan.events}
    every = {*chaos_hosts.OF_WORKERS, *chaos_hosts.OF_HOSTS}
    assert kinds == {kind.removeprefix("short ") for kind in every}
    assert 50 < sum(plan.harmless for plan in plans) < 150
    for plan in plans:
        assert all(event.at + event.seconds < plan.seconds for event in plan.events)
        assert str(plan).startswith(f"seed {plan.seed}: ")


# Names of `collectives` that ask, or are no operation.
ASKING = {"destroy_process_group", "init_process_group", "is_initialized", "tune", "world_group"}


def test_every_operation_of_a_group_has_a_row() -> None:
    text = Path(work.__file__).read_text() + Path(test_objects.__file__).read_text()
    used = {*VERBS, *re.findall(r"\bdist\.(\w+)\(", text)}
    verbs = {name for name in collectives.__all__ if name[0].islower() and "get_" not in name}
    assert not verbs - ASKING - used
    with Cluster(3) as cluster:
        cluster.run(every_row)


def every_row() -> None:
    """Runs each row once on a network without faults, so that a fault alone can fail it."""
    collectives.init_process_group(timeout=60.0)
    r, n = collectives.get_rank(), collectives.get_world_size()
    for root, row in enumerate(work.COLLECTIVES):
        row(work.Drawn(r, n, root % n, work.counted(root, 5000)))


@pytest.mark.long
def test_two_runs() -> None:
    """One over Unix sockets, with a stop and a break; one over a network with faults by chance."""
    command = [sys.executable, str(SCRIPT), "--runs", "2", "--seed", "4"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 runs from seed 4: all passed" in ended.stdout
