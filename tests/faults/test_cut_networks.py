"""Cuts that the kernel makes: each worker in a network namespace of its own, all on one bridge.

    worker0 ──┐                 link down      both ways, and nobody is told
    worker1 ──┼── bridge        wrong address  what one sends to another goes nowhere: one way
    worker2 ──┘

Where namespaces may not be made the tests are skipped, and say why.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Program, Programs

N = 3
NOWHERE = "02:00:00:00:00:fe"

JOB = """
import math, os, signal, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
from telegrad import rpc
from telegrad.errors import EvictedError, WorkerLostError

lost = threading.Event()
evicted = threading.Event()

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # one write: threads do not mix

def who():
    return rpc.get_worker_info().name

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
        say("still", rpc.rpc_sync(f"worker{1 - rank}", who))
        signal.sigwait([signal.SIGUSR1])
        rpc.shutdown()
    os._exit(0)  # the calls that are held are nobody's any more
"""


class Bridge:
    """Namespaces `0` to `N - 1` with a worker each, and one with the bridge between them."""

    def __init__(self) -> None:
        self._prefix = f"tg{os.getpid()}"
        self._made: list[str] = []

    def make(self) -> None:
        """Makes all; skips the test where that is not allowed."""
        if shutil.which("ip") is None:
            pytest.skip("there is no `ip` command to make network namespaces with")
        for name in ("bridge", *map(str, range(N))):
            made = subprocess.run(
                ["ip", "netns", "add", self.space(name)], capture_output=True, text=True
            )
            if made.returncode != 0:
                pytest.skip(f"network namespaces may not be made here: {made.stderr.strip()}")
            self._made.append(name)
        self.ip("bridge", "link add br0 type bridge")
        self.ip("bridge", "link set br0 up")
        for r in range(N):
            peer = f"link add port{r} type veth peer name eth0 netns {self.space(str(r))}"
            self.ip("bridge", peer)
            self.ip("bridge", f"link set port{r} master br0")
            self.ip("bridge", f"link set port{r} up")
            self.ip(str(r), f"addr add {self.address(r)}/24 dev eth0")
            self.ip(str(r), "link set eth0 up")
            self.ip(str(r), "link set lo up")

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", self.space(name)], check=True)

    def space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    @staticmethod
    def address(r: int) -> str:
        return f"10.213.0.{r + 1}"

    def ip(self, name: str, command: str) -> None:
        """Runs `ip` in a namespace."""
        words = ["ip", "-n", self.space(name), *command.split()]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"

    def cut(self, kind: str) -> None:
        """Cuts worker 2 off: from all, or what it says to rank 0, or what rank 0 says to it."""
        if kind == "link down":
            self.ip("bridge", "link set port2 down")
        elif kind == "one way to rank 0":
            self.ip("2", f"neigh replace {self.address(0)} lladdr {NOWHERE} dev eth0 nud permanent")
        else:
            self.ip("0", f"neigh replace {self.address(2)} lladdr {NOWHERE} dev eth0 nud permanent")

    def heal(self) -> None:
        """Makes the network whole again."""
        self.ip("bridge", "link set port2 up")
        for here, there in (("2", 0), ("0", 2)):
            delete = f"-n {self.space(here)} neigh delete {self.address(there)} dev eth0"
            subprocess.run(["ip", *delete.split()], capture_output=True)


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    made = Bridge()
    try:
        made.make()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kind", ["link down", "one way to rank 0", "one way from rank 0"])
def test_a_cut_is_a_loss_at_both_ends_and_who_comes_back_is_evicted(
    bridge: Bridge, programs: Programs, kind: str
) -> None:
    script = programs.script(JOB)

    def start(r: int) -> Program:
        env = {
            "RANK": str(r),
            "WORLD_SIZE": str(N),
            "MASTER_ADDR": bridge.address(0),
            "MASTER_PORT": "29500",
        }
        inside = ["ip", "netns", "exec", bridge.space(str(r)), sys.executable]
        command: list[str | Path] = [*inside, script, bridge.address(r)]
        return programs.start(command, env=env, limit=30.0)

    ranks = [start(r) for r in range(N)]
    for rank in ranks:
        rank.wait_for("calling")
    bridge.cut(kind)
    for rank in ranks[:2]:
        rank.wait_for("loss worker2")
    ranks[2].wait_for("raised worker0 True")
    for r in (0, 1):
        ranks[r].wait_for(f"still worker{1 - r}")
    bridge.heal()
    output = ranks[2].wait()
    assert "evicted: the coordinator gave up 'worker2'" in output
    assert "loss worker2 EvictedError" in output
    for rank in ranks[:2]:
        rank.process.send_signal(signal.SIGUSR1)
    for rank in ranks[:2]:
        output = rank.wait()
        assert "raised worker2 True" in output
        assert output.count("loss worker") == 1
