"""Calls over gRPC, whose streams the loop writes and reads."""

from __future__ import annotations

from tests.conftest import Programs

PROGRAM = """
from telegrad import rpc
from telegrad.transport import LoopThread, shared_loop_thread
from telegrad.transport.grpc.carrier import GrpcCarrier

CALLS = 200
turns, woken, written = [], [], []

def nothing():
    return None

def counts():
    return len(turns), len(woken), len(written)

def watch():
    loop = shared_loop_thread().loop
    turn, call_soon, send = loop._run_once, LoopThread.call_soon, GrpcCarrier.send
    loop._run_once = lambda: (turns.append(1), turn())
    LoopThread.call_soon = lambda self, function, *args: (
        self.is_loop_thread() or woken.append(function), call_soon(self, function, *args))
    GrpcCarrier.send = lambda self, message: (written.append(message), send(self, message))[1]

agent = rpc.init_rpc(options=rpc.RpcOptions(direct=False))
watch()
if agent.rank == 0:
    for _ in range(20):
        rpc.rpc_sync(1, nothing)
    here, there = counts(), rpc.rpc_sync(1, counts)
    for _ in range(CALLS):
        rpc.rpc_sync(1, nothing)
    now = counts(), rpc.rpc_sync(1, counts)
    for end, before, after in zip(("caller", "callee"), (here, there), now):
        print(end, *((b - a) / CALLS for a, b in zip(before, after)))
rpc.shutdown()
"""


def test_a_call_at_rest_over_grpc(programs: Programs) -> None:
    """One write at each end, for which the loop is woken once, and at most six turns of the loop.

    A receipt is no write of its own; heartbeats come on top.
    """
    ranks = programs.ranks(programs.script(PROGRAM), 2)
    found = dict(line.split(" ", 1) for line in ranks[0].wait().splitlines())
    ranks[1].wait()
    for end in ("caller", "callee"):
        turns, woken, written = map(float, found[end].split())
        assert turns < 6.6, found
        assert woken < 1.1, found
        assert 1.0 <= written < 1.1, found
