"""Workers in processes of their own that are killed, come back, come late, and leave."""

from __future__ import annotations

import re

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from tests.conftest import Program, Programs, unused_port
from tests.faults.remote_code import call_everybody
from tests.patience import with_more_time
from tests.repeated import repeated
from tests.rpc.promises.membership import busy_code

TOKEN = {"TELEGRAD_TOKEN": "a token that only the tests use"}

JOB = """
import contextlib, sys, threading
from telegrad import rpc
from telegrad.errors import WorkerLostError

joins = threading.Semaphore(0)
greeted = threading.Event()

def who():
    return rpc.get_worker_info().name

def greet():
    greeted.set()

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # one write: threads do not mix

def joined(worker):
    say("join", worker.name, worker.rank, worker.incarnation, rpc.rpc_sync(worker, who))
    joins.release()
    with contextlib.suppress(WorkerLostError):  # it may go before its answer does
        rpc.rpc_sync(worker, greet)

if __name__ == "__main__":
    role, address = sys.argv[1:]
    if role == "server":
        start_at_once = rpc.RpcOptions(start_when=1)
        rpc.init_rpc("server", rank=0, world_size=2, init_method=address, options=start_at_once)
        rpc.on_join(joined)
        rpc.on_leave(lambda worker: say("leave", worker.name))
        rpc.on_loss(lambda worker, error: say("loss", worker.name, error.left))
        say("serving")
        for _ in range(4):
            joins.acquire()
    elif role == "late":
        rpc.init_rpc(init_method=address + "?late=1")
    else:
        rpc.init_rpc("trainer", rank=1, world_size=2, init_method=address)
    say("here", rpc.rpc_sync("server", who))
    if role == "stuck":
        threading.Event().wait()
    if role == "leaves":
        greeted.wait()  # the server has its answer
        sys.exit()  # without shutdown: the exit hook says goodbye
    rpc.shutdown()
"""


@repeated
def test_killed_and_back_late_and_gone(programs: Programs, run: int) -> None:
    script = programs.script(JOB)
    address = f"tcp://127.0.0.1:{unused_port()}"

    def start(role: str) -> Program:
        return programs.start(["python", script, role, address], env=TOKEN)

    server = start("server")
    server.wait_for("serving")
    stuck = start("stuck")
    stuck.wait_for("here server")
    server.wait_for("join trainer")
    stuck.kill()
    server.wait_for("loss trainer False")
    start("leaves").wait()
    server.wait_for("leave trainer")
    late = start("late")
    server.wait_for("join worker2")
    trainer = start("trainer")
    for program in (trainer, late):
        assert program.wait() == "here server\n"
    joins = re.findall(r"join (\w+) (\d) (\d+) (\w+)", server.wait())
    assert [(name, rank) for name, rank, _, _ in joins] == [
        ("trainer", "1"),
        ("trainer", "1"),
        ("worker2", "2"),
        ("trainer", "1"),
    ]
    assert [name for name, _, _, _ in joins] == [answer for _, _, _, answer in joins]
    incarnations = [int(incarnation) for _, _, incarnation, _ in joins]
    assert incarnations == sorted(set(incarnations))
    assert re.findall(r"(?:leave|loss) \w+", server.output) == ["loss trainer", "leave trainer"]


@pytest.mark.long
@pytest.mark.parametrize(
    "bounds",
    [1.5, pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(400)])],
)
def test_a_worker_that_is_busy_in_python_is_not_lost(bounds: float) -> None:
    """Nor is it silent, however long it is busy: unless the machine itself stands still."""

    def work(lost_after: float) -> None:
        options = rpc.RpcOptions(lost_after=lost_after)
        with Cluster(2, processes=True, options=options, limit=300.0) as cluster:
            cluster.run(call_everybody)
            assert cluster.call(0, busy_code.calls_busy, "worker1", bounds * lost_after) == []
            assert cluster.run(call_everybody) == [["worker0", "worker1"]] * 2

    with_more_time(work, 0.5, 1.0, 4.0)
