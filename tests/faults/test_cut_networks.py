"""Cuts that the kernel makes, both ways and one way, in the middle of calls."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Program, Programs
from tests.hosts.namespaces import Hosts
from tests.repeated import repeated

N = 3
ONE_WAY = {"one way to rank 0": (2, 0), "one way from rank 0": (0, 2)}

JOB = """
import math, os, signal, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
from telegrad import rpc
from telegrad.errors import EvictedError, WorkerLostError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.testing.leaks import wait_until_gone

lost = threading.Event()
evicted = threading.Event()

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # one write: threads do not mix

def who():
    return rpc.get_worker_info().name

def living():
    return current_agent().attachments[JoinedJob].living()

def hold():
    threading.Event().wait(60)

def on_loss(worker, error):
    say("loss", worker.name, type(error).__name__)
    (evicted if isinstance(error, EvictedError) else lost).set()

if __name__ == "__main__":
    address = sys.argv[1]
    rpc.init_rpc(options=rpc.RpcOptions(lost_after=1.0, bind=address, insecure=True))
    rank = rpc.get_worker_info().rank
    rpc.on_loss(on_loss)
    for info in rpc.get_worker_infos():
        assert rpc.rpc_sync(info, who) == info.name
    if rank == 2:
        waiting = rpc.rpc_async("worker0", hold, timeout=math.inf)
    else:
        waiting = rpc.rpc_async("worker2", hold, timeout=math.inf)
    say("calling")
    try:
        waiting.wait()
    except WorkerLostError as error:
        say("raised", error.worker, "silent" in error.reason or "coordinator" in str(error))
    if rank == 2:
        assert evicted.wait(30)
        try:
            rpc.rpc_sync("worker1", who)
        except EvictedError as error:
            say("evicted:", error)
    else:
        assert lost.wait(30)
        wait_until_gone("members", lambda: [each for each in living() if each.info.rank == 2])
        say("still", rpc.rpc_sync(f"worker{1 - rank}", who))
        signal.sigwait([signal.SIGUSR1])
        rpc.shutdown()
    os._exit(0)  # the calls that are held are nobody's any more
"""


@pytest.fixture
def bridge() -> Iterator[Hosts]:
    with Hosts.made(N) as made:
        yield made


# Both ways: test_hostile_verbs.py does the same for every verb.
@pytest.mark.parametrize(
    "kind",
    [
        "one way to rank 0",
        pytest.param("one way from rank 0", marks=pytest.mark.long),
        pytest.param("link down", marks=pytest.mark.long),
    ],
)
@repeated
def test_a_cut_is_a_loss_at_both_ends_and_who_comes_back_is_evicted(
    bridge: Hosts, programs: Programs, kind: str, run: int
) -> None:
    script = programs.script(JOB)

    def start(r: int) -> Program:
        env = {
            "RANK": str(r),
            "WORLD_SIZE": str(N),
            "MASTER_ADDR": bridge.address(0),
            "MASTER_PORT": "29500",
        }
        command: list[str | Path] = [*bridge.python(r), script, bridge.address(r)]
        return programs.start(command, env=env, limit=30.0)

    ranks = [start(r) for r in range(N)]
    for rank in ranks:
        rank.wait_for("calling")
    if kind in ONE_WAY:
        bridge.cut_one_way(*ONE_WAY[kind])
    else:
        bridge.cut(2)
    for rank in ranks[:2]:
        rank.wait_for("loss worker2")
    ranks[2].wait_for("raised worker0 True")
    for r in (0, 1):
        ranks[r].wait_for(f"still worker{1 - r}")
    if kind in ONE_WAY:
        bridge.heal_one_way(*ONE_WAY[kind])
    else:
        bridge.heal(2)
    output = ranks[2].wait()
    assert "evicted: the coordinator gave up 'worker2'" in output
    assert "loss worker2 EvictedError" in output
    for rank in ranks[:2]:
        rank.process.send_signal(signal.SIGUSR1)
    for rank in ranks[:2]:
        output = rank.wait()
        assert "raised worker2 True" in output
        assert output.count("loss worker") == 1
