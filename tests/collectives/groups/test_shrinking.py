"""The survivors of a loss make a smaller group, whatever each of them knows of the losses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad.rpc import RpcOptions
from telegrad.testing import Cluster
from tests.collectives import remote_code

LARGE = 100_000


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def of(*ranks: int) -> list[tuple[Any, ...]]:
    """Returns what the survivors find: rank, size, ranks, the sum of powers, what else failed."""
    total = float(sum(2**r for r in ranks))
    return [(i, len(ranks), ranks, total) for i in range(len(ranks))]


def shrinks(*excluded: int) -> tuple[Any, ...]:
    """Shrinks the group of all, and reduces over what is left."""
    group = dist.shrink_group(ranks_to_exclude=excluded, timeout=30.0)
    array = np.full(LARGE, 2.0 ** dist.get_rank())
    dist.all_reduce(array, group=group)
    (total,) = set(array.tolist())
    return group.rank, group.size, group.ranks, total


def fails_and_shrinks() -> tuple[Any, ...]:
    """Waits until the group of all is over, as a training step does, and goes on."""
    words = "nothing"
    while words == "nothing":
        words = remote_code.refusal(dist.barrier)
    assert words.startswith("WorkerLostError"), words
    found = shrinks()
    assert remote_code.refusal(dist.barrier).startswith("WorkerLostError")  # the old group
    return found


@pytest.mark.long
@settings(max_examples=12)
@given(st.integers(2, 4), st.data())
def test_survivors(n: int, data: st.DataObject) -> None:
    dead = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))
    with Cluster(n) as cluster:
        cluster.run(remote_code.meet)
        for r in dead:
            cluster.kill(r)
        living = [r for r in range(n) if r not in dead]
        assert cluster.run(fails_and_shrinks) == of(*living)


def test_a_rank_that_is_lost_while_the_others_shrink(pool: ThreadPoolExecutor) -> None:
    with Cluster(4) as cluster:
        cluster.run(remote_code.meet)
        cluster.kill(2)
        shrinking = [pool.submit(cluster.call, r, shrinks) for r in (0, 3)]
        for r in (0, 3):
            cluster.call(r, remote_code.is_forming)
        cluster.kill(1)
        assert [each.result() for each in shrinking] == of(0, 3)


def shrinks_twice() -> list[Any]:
    first = dist.shrink_group()
    return [first.ranks, dist.shrink_group(first).ranks]


def test_a_group_that_was_shrunk_shrinks_again() -> None:
    with Cluster(4) as cluster:
        cluster.run(remote_code.meet)
        cluster.kill(1)
        assert cluster.run(shrinks_twice) == [[(0, 2, 3), (0, 2, 3)]] * 3
        cluster.kill(3)
        assert cluster.run(shrinks) == of(0, 2)


def turns_and_shrinks() -> list[Any]:
    turned = dist.new_group([3, 0, 2, 1])
    return [dist.shrink_group(turned, ranks_to_exclude=[]).ranks, turned.ranks]


def test_the_order_of_the_old_group_stays() -> None:
    with Cluster(4) as cluster:
        cluster.run(remote_code.meet)
        assert cluster.run(turns_and_shrinks) == [[(3, 0, 2, 1)] * 2] * 4


def test_planned_departures(pool: ThreadPoolExecutor) -> None:
    """The old group stays usable for those that stay in it."""
    with Cluster(3) as cluster:
        cluster.run(remote_code.meet)
        staying = [pool.submit(cluster.call, r, shrinks, 1) for r in (0, 2)]
        assert [each.result() for each in staying] == of(0, 2)
        cluster.run(dist.barrier)


def with_wrong_arguments() -> list[str]:
    return [
        remote_code.refusal(lambda: dist.shrink_group(ranks_to_exclude=[dist.get_rank()])),
        remote_code.refusal(lambda: dist.shrink_group(ranks_to_exclude=[7])),
        remote_code.refusal(lambda: dist.shrink_group(ranks_to_exclude=["worker0"])),  # type: ignore[list-item]
        remote_code.refusal(lambda: dist.shrink_group(dist.new_group([1 - dist.get_rank()]))),
        remote_code.refusal(lambda: dist.shrink_group(3)),  # type: ignore[arg-type]
        remote_code.refusal(lambda: dist.shrink_group(timeout=-1.0)),
    ]


def test_wrong_arguments() -> None:
    with Cluster(2) as cluster:
        cluster.run(remote_code.meet)
        wrong = [cluster.call(0, with_wrong_arguments)]
    for itself, unknown, name, stranger, number, limit in wrong:
        assert itself.startswith("ValueError: rank 0 is among ranks_to_exclude")
        assert unknown.startswith("ValueError: ranks_to_exclude 7 is no member of group 'world'")
        assert name.startswith("TypeError: ranks_to_exclude must be a rank")
        assert stranger.startswith("ValueError: this worker is no member of group '[1]'")
        assert number.startswith("TypeError: group must be")
        assert limit.startswith("ValueError: ")


def waits_in_vain(limit: float) -> str:
    return remote_code.refusal(lambda: dist.shrink_group(timeout=limit))


def test_a_deadline_names_who_is_missing() -> None:
    with Cluster(3) as cluster:
        cluster.run(remote_code.meet)
        cluster.kill(2)
        words = cluster.call(0, waits_in_vain, 0.2)
        assert words.startswith("CallTimeoutError: shrink_group() to [0, 1]"), words
        assert "not called by rank 1 ('worker1')" in words


@pytest.mark.long
def test_a_rank_that_the_job_gave_up_gets_no_group_of_its_own(pool: ThreadPoolExecutor) -> None:
    with Cluster(3, processes=True, options=RpcOptions(lost_after=1.5)) as cluster:
        pid = cluster.run(remote_code.meet)[1]
        training = {r: pool.submit(cluster.call, r, fails_and_shrinks) for r in (0, 2)}
        for r in (0, 2):
            cluster.call(r, remote_code.entered, 2)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert [training[r].result() for r in (0, 2)] == of(0, 2)
        finally:
            os.kill(pid, signal.SIGCONT)
        words = cluster.call(1, waits_in_vain, 30.0)
        assert words.partition(":")[0] in ("EvictedError", "WorkerLostError"), words
