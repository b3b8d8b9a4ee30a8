"""A rank that dies or stands still in the middle of a collective: an error on every other one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from telegrad.rpc import RpcOptions
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.collectives.remote_code import LARGE

# A process that is gone refuses dials, so that nobody need wait for its silence.
NEVER_SILENT = RpcOptions(lost_after=1000.0)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def check_lost(said: list[str], reason: str) -> None:
    first, later = said
    assert first.startswith("WorkerLostError: worker 'worker1'"), first
    assert reason in first
    assert "of group 'world' on rank" in first
    assert later.startswith("WorkerLostError: barrier() on group 'world' on rank"), later
    assert "is refused, since the group is over: worker 'worker1'" in later
    assert "make a new group with new_group()" in later


def start(
    pool: ThreadPoolExecutor, cluster: Cluster, what: str, ranks: Sequence[int] = (0, 2)
) -> dict[int, Future[list[str]]]:
    """Lets ranks enter an operation that rank 1 will not come to."""
    waiting = {r: pool.submit(cluster.call, r, remote_code.do_refused, what) for r in ranks}
    for r in waiting:
        cluster.call(r, remote_code.entered, 2)
    return waiting


KILLED_IN = [
    "all_reduce",
    f"all_reduce {LARGE * 10}",
    "broadcast much",
    "scatter from 0",
    "gather_object to 0",
]


@pytest.mark.few(1)
@pytest.mark.parametrize("what", KILLED_IN)
def test_an_agent_that_is_killed(pool: ThreadPoolExecutor, what: str) -> None:
    with Cluster(3) as cluster:
        cluster.run(remote_code.meet)
        waiting = start(pool, cluster, what)
        cluster.kill(1)
        for future in waiting.values():
            check_lost(future.result(), "is lost")
        assert cluster.run(remote_code.go_on_without, 1) == [2.0, 2.0]


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["all_reduce", f"all_reduce {LARGE}", "all_gather"])
def test_one_of_many_agents_is_killed(what: str) -> None:
    with Cluster(9) as cluster, ThreadPoolExecutor(8) as pool:
        cluster.run(remote_code.meet)
        waiting = start(pool, cluster, what, [r for r in range(9) if r != 1])
        cluster.kill(1)
        for future in waiting.values():
            check_lost(future.result(), "is lost")


@pytest.mark.long
def test_a_process_that_is_killed_while_data_is_under_way(pool: ThreadPoolExecutor) -> None:
    with Cluster(3, processes=True, options=NEVER_SILENT) as cluster:
        cluster.run(remote_code.meet)
        what = f"all_reduce {LARGE * 10}"
        running = {
            r: pool.submit(cluster.call, r, remote_code.do_endlessly, what) for r in range(3)
        }
        cluster.call(1, remote_code.entered, 4)
        cluster.kill(1)
        for r in (0, 2):
            check_lost(running[r].result(), "is lost")
        assert running[1].exception() is not None
        assert cluster.run(remote_code.go_on_without, 1) == [2.0, 2.0]


@pytest.mark.long
def test_a_process_that_stands_still(pool: ThreadPoolExecutor) -> None:
    """It is given up after the bound; when it goes on it hears so too."""
    with Cluster(3, processes=True, options=RpcOptions(lost_after=1.5)) as cluster:
        pid = cluster.run(remote_code.meet)[1]
        what = f"all_reduce {LARGE * 10}"
        running = {
            r: pool.submit(cluster.call, r, remote_code.do_endlessly, what) for r in range(3)
        }
        cluster.call(1, remote_code.entered, 4)
        os.kill(pid, signal.SIGSTOP)
        try:
            for r in (0, 2):
                check_lost(running[r].result(), "silent for")
        finally:
            os.kill(pid, signal.SIGCONT)
        woken, later = running[1].result()
        assert woken.partition(":")[0] in ("EvictedError", "WorkerLostError"), woken
        assert "is refused" in later or "EvictedError" in later


def test_a_lost_rank_while_groups_are_formed(pool: ThreadPoolExecutor) -> None:
    with Cluster(3) as cluster:
        cluster.run(remote_code.meet)
        waiting = [pool.submit(cluster.call, r, remote_code.forms_all) for r in (0, 2)]
        for r in (0, 2):
            cluster.call(r, remote_code.is_forming)
        cluster.kill(1)
        for future in waiting:
            assert future.result().startswith("WorkerLostError: worker 'worker1'")
        for r in (0, 2):
            words = cluster.call(r, remote_code.forms_all)
            assert words.startswith("WorkerLostError: worker 'worker1'")
            assert "leave this one out" in words
        assert cluster.run(remote_code.go_on_without, 1) == [2.0, 2.0]


def test_an_interrupted_rank(pool: ThreadPoolExecutor) -> None:
    """Whatever ends an operation on one rank ends it on the others."""
    with Cluster(2) as cluster:
        cluster.run(remote_code.meet)
        future = pool.submit(cluster.call, 0, remote_code.do_refused, "all_reduce")
        cluster.call(0, remote_code.entered, 2)
        aborted = cluster.call(1, remote_code.aborts)
        waiting = future.result()
    assert waiting[0].startswith("ValueError: no more data")
    assert "raised in" in waiting[0]
    assert waiting[1].startswith("ValueError: no more data")
    assert "is refused" in waiting[1]
    assert aborted[0].startswith("ValueError: no more data")
