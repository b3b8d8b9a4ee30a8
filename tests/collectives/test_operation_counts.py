"""What one short operation between two hosts costs, counted: functions, system calls, wake-ups.

Times depend on the machine and counts do not: whoever makes an operation longer sees it here. Two
workers of one machine stand for two hosts: they meet by TCP alone.
"""

from __future__ import annotations

from tests.conftest import Programs

CALLS = 40
# A rank that the machine holds up waits in other places, which adds to what is counted, and nothing
# takes from it: the least of several counts is what the operations themselves cost. It counts until
# that is within the limits.
BATCHES = 6

SOURCE = """
import sys, threading
import numpy as np
from telegrad import collectives as dist, rpc
from telegrad.transport.io import spin
from tests.counting import Cost

CALLS, BATCHES = @CALLS
cost = Cost()

def batch(run):
    dist.barrier()
    cost.begin()
    for _ in range(CALLS):
        run()
    counts = cost.end()
    both = np.zeros((2, len(counts)))
    both[rank] = np.divide(counts, CALLS)
    dist.all_reduce(both)
    return both

def exchange():
    if rank == 0:
        dist.send(one, 1), dist.recv(one, 1)
    else:
        dist.recv(one, 0), dist.send(one, 0)

threading.setprofile(cost.note)
spin.SPIN_SECONDS = 0
agent = rpc.init_rpc(options=rpc.RpcOptions(direct='tcp'))
rank, one = agent.rank, np.zeros(1, np.float32)
dist.init_process_group()
sys.setprofile(cost.note)
runs = {"all_reduce": lambda: dist.all_reduce(one), "barrier": dist.barrier, "exchange": exchange}
for name, run in runs.items():
    for _ in range(100):  # until the stream has moved to the socket past gRPC
        run()
    least = np.full((2, len(LIMITS[name])), np.inf)
    for _ in range(BATCHES):
        least = np.minimum(least, batch(run))
        if np.all(least <= LIMITS[name]):
            break
    print(name, least.tolist(), flush=True)
    assert np.all(least <= LIMITS[name]), (name, least.tolist(), LIMITS[name])
print("counted", flush=True)
rpc.shutdown()
"""

# Functions of Python's, entries of the kernel, turns of telegrad's loop and wake-ups of threads, of
# one operation on either rank. Some room is for heartbeats.
LIMITS = {
    "all_reduce": (230, 9, 0.6, 0.2),
    "barrier": (170, 9, 0.6, 0.2),
    "exchange": (290, 11, 0.6, 0.2),
}


def test_short_operations_between_hosts(programs: Programs) -> None:
    source = f"LIMITS = {LIMITS}\n" + SOURCE.replace("@CALLS", f"{CALLS}, {BATCHES}")
    for rank in programs.ranks(programs.script(source), 2):
        assert "counted" in rank.wait()
