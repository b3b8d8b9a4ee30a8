"""Calls between the workers of one host, over each carrier: a local socket, TCP, gRPC."""

from __future__ import annotations

import pytest

from tests.conftest import Programs
from tests.rpc.promises.carriers.program_cases import run_cases

HEAD = """
import asyncio, os, signal, threading, time
import numpy as np
from telegrad import rpc
from telegrad.errors import CallTimeoutError, WorkerLostError
from telegrad.transport import LoopThread

def nothing():
    return None

def twice(x):
    return 2 * x

def back(rank, times):
    return rpc.rpc_sync(rank, back, (1 - rank, times - 1)) if times else os.getpid()

released = threading.Event()

def hold():
    assert released.wait(30)

def release():
    released.set()

def hold_again():
    released.clear()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

woken, threads = [], set()

call_soon = LoopThread.call_soon

def watch():
    LoopThread.call_soon = lambda self, function, *args: (
        woken.append(function), call_soon(self, function, *args))

def begin():
    threads.clear()

def noted():
    threads.add(threading.get_ident())
    return len(woken), len(threads)

agent = rpc.init_rpc()

def carrier():
    (connection,) = rpc.seams.core_of(agent).exchange._peers.known.values()
    stream = connection.stream  # none while it moves
    return "" if stream is None else stream.carrier.description

if agent.rank == 0:
    rpc.rpc_sync(1, nothing)
    assert carrier().startswith("local"), carrier()
"""

BODIES = {
    "a call at rest wakes the caller's loop not once": """
    watch()
    time.sleep(0.001)  # or the first of them would follow on another too closely
    before = rpc.statistics()
    for _ in range(50):
        rpc.rpc_sync(1, nothing)
        time.sleep(0.0002)
    LoopThread.call_soon = call_soon
    assert len(woken) <= 10, woken  # heartbeats, and what the loop does by itself
    after = rpc.statistics()
    assert after.calls_sent - before.calls_sent == 50
    """,
    "calls awaited on the program's own loop wake telegrad's not once": """
    async def calls(times):
        for n in range(times):
            assert await rpc.rpc_async(1, twice, (n,)) == 2 * n
    asyncio.run(calls(1))
    watch()
    asyncio.run(calls(50))
    assert len(woken) <= 10, woken  # heartbeats, and what the loop does by itself
    async def together():
        assert await asyncio.gather(*(rpc.rpc_async(1, twice, (n,)) for n in range(200))) == [
            2 * n for n in range(200)]
    asyncio.run(together())
    assert rpc.rpc_sync(1, twice, (4,)) == 8
    """,
    "coroutines there await a worker that calls back": """
    async def calls():
        counts = await asyncio.gather(*(rpc.rpc_async(1, back, (0, n % 4)) for n in range(20)))
        assert len(set(counts)) == 2
    asyncio.run(calls())
    """,
    "a call at rest wakes the callee's loop not once, and one thread of its pool runs them all": """
    rpc.rpc_sync(1, watch)
    batches = []
    while len(batches) < 5:  # a thread that the machine holds up has another one come
        time.sleep(0.001)
        rpc.rpc_sync(1, begin)
        counts = [rpc.rpc_sync(1, noted) for _ in range(50)]
        batches.append((counts[-1][0] - counts[0][0], counts[-1][1]))
        if batches[-1][0] <= 10 and batches[-1][1] <= 2:
            return  # heartbeats wake it, and what it does by itself
    raise AssertionError(batches)
    """,
    "calls back and forth": """
    assert rpc.rpc_sync(1, back, (0, 4)) != os.getpid()
    assert rpc.rpc_sync(1, back, (0, 3)) == os.getpid()
    futures = [rpc.rpc_async(1, back, (0, n % 4)) for n in range(20)]
    assert len(rpc.wait_all(futures)) == 20
    """,
    "threads that wait for one worker": """
    failures = []
    def calls(k):
        for n in range(30):
            if rpc.rpc_sync(1, twice, (n * k,)) != 2 * n * k:
                failures.append((n, k))
    callers = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
    for thread in callers: thread.start()
    for thread in callers: thread.join()
    assert not failures, failures
    """,
    "arrays of all sizes": """
    for size in (1, 10_000, 300_000, 1_000_000):
        x = np.arange(size, dtype=np.float32)
        y = rpc.rpc_sync(1, twice, (x,))
        assert np.array_equal(y, 2 * x) and y.flags.writeable
    """,
    "a wait ends with its deadline": """
    try:
        rpc.rpc_sync(1, hold, timeout=0.2)
    except CallTimeoutError as error:
        assert error.elapsed < 10
    else:
        raise AssertionError("no timeout")
    rpc.rpc_sync(1, release)
    assert rpc.rpc_sync(1, twice, (4,)) == 8
    """,
    "ctrl-c in the midst of a wait": """
    rpc.rpc_sync(1, hold_again)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        rpc.rpc_sync(1, hold)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no interrupt")
    rpc.rpc_sync(1, release)
    assert rpc.rpc_sync(1, twice, (4,)) == 8
    """,
}

BEGIN = """
LoopThread.call_soon = call_soon
woken.clear()
"""

DIES = """
if agent.rank == 0:
    try:
        rpc.rpc_sync(1, die, timeout=60)
    except WorkerLostError as error:
        assert error.worker == "worker1"
    else:
        raise AssertionError("no loss")
rpc.shutdown(graceful=agent.rank == 1)
"""


def of_carrier(option: str, check: str) -> str:
    """Returns the head of the same program over another carrier."""
    head = HEAD.replace("init_rpc()", f"init_rpc(options=rpc.RpcOptions(direct={option}))")
    return head.replace("""    assert carrier().startswith("local"), carrier()""", check)


TCP = of_carrier(
    "'tcp'",
    """    while not carrier().startswith("tcp"):
        rpc.rpc_sync(1, nothing)""",
)
GRPC = of_carrier("False", """    assert carrier().startswith("grpc"), carrier()""")


@pytest.mark.parametrize("head", [HEAD, TCP, GRPC], ids=["local", "tcp", "grpc"])
@pytest.mark.long
def test_over_each_carrier(programs: Programs, head: str) -> None:
    """Threads read and write direct sockets themselves; the loop does it over gRPC."""
    cases = {name: body for name, body in BODIES.items() if head != GRPC or "loop" not in name}
    for each in programs.ranks(programs.script(head + run_cases(cases, begin=BEGIN)), 2):
        each.wait()


def test_a_callee_that_dies_while_the_caller_reads(programs: Programs) -> None:
    caller, callee = programs.ranks(programs.script(HEAD + DIES), 2)
    caller.wait()
    callee.wait(code=-9)
