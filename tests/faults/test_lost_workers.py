"""Workers that are killed, stopped or silent in the middle; who is left goes on, within bounds."""

from __future__ import annotations

import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from telegrad import rpc
from telegrad.errors import EvictedError, OwnerLostError, WorkerLostError
from telegrad.testing import Cluster, held_references, leaks
from tests.faults import passes, remote_code
from tests.faults.outcome import SOON
from tests.faults.remote_code import (
    call_everybody,
    calls_lost,
    entered,
    fetches,
    found,
    gradient_over,
    in_background,
    leave,
    leaves_with_a_call_in_flight,
    relay,
    release,
    waits_for,
    waits_on_a_loop,
    waits_through,
    waits_until_dropped,
)
from tests.faults.silence import Stalls, check_silence
from tests.repeated import repeated

# A refused dial need not wait for the bound of silence, which is more than a machine stands still.
PATIENT = rpc.RpcOptions(lost_after=40.0)
AT_ONCE = SOON


def nothing_is_held(cluster: Cluster) -> None:
    """Waits until no living worker holds a context, a call or a value of another one.

    What a lost worker refers to its owner keeps for one more bound; tests/rpc/rref times that.
    """

    def left() -> list[str]:
        held = {rank: cluster.call(rank, held_references) for rank in cluster.living}
        return [
            f"worker{rank}: {count} {kind}"
            for rank, counts in held.items()
            for kind, count in counts.items()
            if count and kind != "owned RRefs"
        ]

    leaks.wait_until_gone("references", left)


# -- in the middle of calls ----------------------------------------------------------------------


@repeated
def test_a_callee_killed_in_the_middle_of_calls(run: int) -> None:
    with Cluster(4, processes=True, options=PATIENT) as cluster:
        cluster.run(call_everybody)
        cluster.call(0, in_background, "direct", waits_for, "worker1", "a")
        cluster.call(0, in_background, "fetch", fetches, "worker1", "b")
        cluster.call(2, in_background, "nested", waits_through, "worker3", relay, "worker1", "c")
        cluster.call(
            3, in_background, "loop", waits_through, "worker2", waits_on_a_loop, "worker1", "d"
        )
        for name in "abcd":
            cluster.call(1, entered, name)
        cluster.kill(1)
        killed = time.monotonic()
        lost = ("worker 'worker1'", "is lost", "last heard")
        direct = cluster.call(0, found, "direct").check(WorkerLostError, *lost, within=math.inf)
        assert "remote_code:hold" in direct.text
        assert direct.fields["worker"] == "worker1"
        assert direct.fields["reason"] in direct.message
        cluster.call(0, found, "fetch").check(OwnerLostError, "'worker1'", within=math.inf)
        for rank, name, via in ((2, "nested", "worker3"), (3, "loop", "worker2")):
            failure = cluster.call(rank, found, name).check(WorkerLostError, *lost, within=math.inf)
            assert f"remote traceback, from worker '{via}'" in failure.text
        assert time.monotonic() - killed < AT_ONCE
        later = cluster.call(0, calls_lost, "worker1").check(WorkerLostError, *lost)
        assert "remote_code:who" in later.text
        living = ["worker0", "worker2", "worker3"]
        assert cluster.run(call_everybody) == [living] * 3
        assert cluster.call(0, gradient_over, "worker2") == [2.0] * 3
        nothing_is_held(cluster)
        assert max(cluster.run(leave)) < AT_ONCE


# -- in the middle of a backward -----------------------------------------------------------------


@repeated
def test_workers_killed_in_the_middle_of_backward(pool: ThreadPoolExecutor, run: int) -> None:
    """First one that a pass goes through, then the one that started another pass."""
    with Cluster(4, processes=True, options=PATIENT) as cluster:
        cluster.run(call_everybody)
        broken = pool.submit(cluster.call, 0, passes.broken_pass, "worker1", "worker2", "hook")
        cluster.call(1, entered, "hook")
        cluster.kill(1)
        killed = time.monotonic()
        failure = broken.result(AT_ONCE)
        failure.check(WorkerLostError, "worker 'worker1'", "is lost", within=math.inf)
        assert failure.fields["worker"] == "worker1"
        assert time.monotonic() - killed < AT_ONCE
        nothing_is_held(cluster)

        started = pool.submit(cluster.call, 0, passes.broken_pass, "worker3", "worker2", "again")
        cluster.call(3, entered, "again")
        cluster.kill(0)
        with pytest.raises(WorkerLostError, match="worker0 ended in the middle"):
            started.result(AT_ONCE)
        cluster.call(3, release, "again")
        nothing_is_held(cluster)
        assert cluster.call(2, gradient_over, "worker3") == [2.0] * 3
        assert cluster.call(3, gradient_over, "worker2") == [2.0] * 3
        assert max(cluster.run(leave)) < AT_ONCE


# -- silence -------------------------------------------------------------------------------------


@repeated
def test_a_stopped_callee(pool: ThreadPoolExecutor, run: int) -> None:
    """It is given up after the bound; when it wakes up it hears so from every wait."""
    options = rpc.RpcOptions(lost_after=2.0)
    with Cluster(3, processes=True, options=options) as cluster:
        cluster.run(call_everybody)
        pid = cluster.call(1, remote_code.process_id)
        waiting = [
            pool.submit(cluster.call, rank, waits_until_dropped, "worker1", f"of {rank}")
            for rank in (0, 2)
        ]
        own = pool.submit(cluster.call, 1, waits_for, "worker0", "own")
        for rank, name in ((1, "of 0"), (1, "of 2"), (0, "own")):
            cluster.call(rank, entered, name)
        os.kill(pid, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            failures = [each.result(2 * AT_ONCE) for each in waiting]
            assert time.monotonic() - stopped < AT_ONCE
        finally:
            os.kill(pid, signal.SIGCONT)
        for failure in failures:
            words = ("worker 'worker1'", "is lost: silent for", "remote_code:hold")
            failure.check(WorkerLostError, *words, within=math.inf)
            assert 1.0 <= failure.fields["last_seen"] < AT_ONCE
        own.result(AT_ONCE).check(EvictedError, "gave up 'worker1'", within=math.inf)
        for name in ("of 0", "of 2"):
            cluster.call(1, release, name)
        cluster.call(0, release, "own")
        for peer in ("worker0", "worker2"):
            cluster.call(1, calls_lost, peer).check(
                EvictedError, "gave up 'worker1'", "goes on without it", "start it"
            )
        assert cluster.call(1, leave) < AT_ONCE
        living = ["worker0", "worker2"]
        assert cluster.call(0, call_everybody) == living
        assert cluster.call(2, call_everybody) == living
        assert cluster.call(0, gradient_over, "worker2") == [2.0] * 3


@pytest.mark.long
def test_a_stopped_worker_with_the_default_bound(pool: ThreadPoolExecutor) -> None:
    """10 to 13 s of silence, which the survivors measure themselves."""
    lost_after = rpc.RpcOptions().lost_after
    assert lost_after == 10.0
    with Cluster(3, processes=True, options=rpc.RpcOptions()) as cluster:
        cluster.run(call_everybody)
        pid = cluster.call(1, remote_code.process_id)
        waiting = [
            pool.submit(cluster.call, rank, waits_for, "worker1", f"of {rank}") for rank in (0, 2)
        ]
        for rank in (0, 2):
            cluster.call(1, entered, f"of {rank}")
        with Stalls() as stalls:
            os.kill(pid, signal.SIGSTOP)
            failures = [each.result() for each in waiting]
        for failure in failures:
            failure.check(WorkerLostError, "worker 'worker1'", within=math.inf)
            check_silence(failure, lost_after, stalls)
        cluster.kill(1)
        assert cluster.call(0, call_everybody) == ["worker0", "worker2"]


# -- shutdown ------------------------------------------------------------------------------------


@repeated
def test_graceful_shutdown_with_dead_peers(pool: ThreadPoolExecutor, run: int) -> None:
    """worker3 was never called; worker2 dies while worker0's shutdown waits for it."""
    with Cluster(4, processes=True, options=PATIENT) as cluster:
        cluster.kill(3)
        leaving = pool.submit(cluster.call, 0, leaves_with_a_call_in_flight, "worker2", "held")
        cluster.call(2, entered, "held")
        assert cluster.call(1, remote_code.add, 1, 2) == 3
        cluster.kill(2)
        began = time.monotonic()
        assert cluster.call(1, leave) < AT_ONCE
        leaving.result(AT_ONCE).check(WorkerLostError, "worker 'worker2'", within=math.inf)
        assert time.monotonic() - began < AT_ONCE
