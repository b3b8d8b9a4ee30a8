"""Calls between the workers of one host, over a local socket that their threads use themselves."""

from __future__ import annotations

import pytest

from tests.conftest import Programs

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

def sleep(seconds):
    threading.Event().wait(seconds)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

woken, threads = [], set()

def watch():
    real = LoopThread.call_soon
    LoopThread.call_soon = lambda self, function, *args: (
        woken.append(function), real(self, function, *args))

def begin():
    threads.clear()

def noted():
    threads.add(threading.get_ident())
    return len(woken), len(threads)

agent = rpc.init_rpc()

def carrier():
    (connection,) = rpc.seams.core_of(agent)._exchange._connections.values()
    return connection.stream.carrier.description

if agent.rank == 0:
    rpc.rpc_sync(1, nothing)
    assert carrier().startswith("local"), carrier()
"""

BODIES = {
    "a call at rest wakes the caller's loop not once": """
    real = LoopThread.call_soon
    watch()
    time.sleep(0.001)  # or the first of them would follow on another too closely
    before = rpc.statistics()
    for _ in range(50):
        rpc.rpc_sync(1, nothing)
        time.sleep(0.0002)
    LoopThread.call_soon = real
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
        assert await asyncio.gather(*(rpc.rpc_async(1, twice, (n,)) for n in range(500))) == [
            2 * n for n in range(500)]
    asyncio.run(together())
    assert rpc.rpc_sync(1, twice, (4,)) == 8
    """,
    "coroutines there await a worker that calls back": """
    async def calls():
        counts = await asyncio.gather(*(rpc.rpc_async(1, back, (0, n % 4)) for n in range(40)))
        assert len(set(counts)) == 2
    asyncio.run(calls())
    """,
    "a call at rest wakes the callee's loop not once, and one thread of its pool runs them all": """
    rpc.rpc_sync(1, watch)
    batches = []
    for _ in range(5):  # a thread that the machine holds up has another one come
        time.sleep(0.001)
        rpc.rpc_sync(1, begin)
        counts = [rpc.rpc_sync(1, noted) for _ in range(50)]
        batches.append((counts[-1][0] - counts[0][0], counts[-1][1]))
    # Heartbeats wake it, and what it does by itself.
    assert any(woken <= 10 and threads <= 2 for woken, threads in batches), batches
    """,
    "calls back and forth": """
    assert rpc.rpc_sync(1, back, (0, 4)) != os.getpid()
    assert rpc.rpc_sync(1, back, (0, 3)) == os.getpid()
    futures = [rpc.rpc_async(1, back, (0, n % 4)) for n in range(40)]
    assert len(rpc.wait_all(futures)) == 40
    """,
    "threads that wait for one worker": """
    failures = []
    def calls(k):
        for n in range(60):
            if rpc.rpc_sync(1, twice, (n * k,)) != 2 * n * k:
                failures.append((n, k))
    threads = [threading.Thread(target=calls, args=(k,)) for k in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not failures, failures
    """,
    "arrays of all sizes": """
    for size in (1, 10_000, 300_000, 3_000_000):
        x = np.arange(size, dtype=np.float32)
        y = rpc.rpc_sync(1, twice, (x,))
        assert np.array_equal(y, 2 * x) and y.flags.writeable
    """,
    "a wait ends with its deadline": """
    try:
        rpc.rpc_sync(1, sleep, (30,), timeout=0.2)
    except CallTimeoutError as error:
        assert error.elapsed < 10
    else:
        raise AssertionError("no timeout")
    assert rpc.rpc_sync(1, twice, (4,)) == 8
    """,
    "a callee that dies while the caller reads": """
    try:
        rpc.rpc_sync(1, die, timeout=60)
    except WorkerLostError as error:
        assert error.worker == "worker1"
    else:
        raise AssertionError("no loss")
    """,
    "ctrl-c in the midst of a wait": """
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        rpc.rpc_sync(1, sleep, (1,))
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no interrupt")
    assert rpc.rpc_sync(1, twice, (4,)) == 8
    """,
}

TAIL = """
    print("all is well", flush=True)
rpc.shutdown(graceful=agent.rank == 1 or not DIES)
"""


@pytest.mark.parametrize("body", BODIES)
def test_over_a_direct_socket(programs: Programs, body: str) -> None:
    dies = "dies" in body
    source = f"DIES = {dies}\n{HEAD}{BODIES[body]}{TAIL}"
    caller, callee = programs.ranks(programs.script(source), 2)
    assert "all is well" in caller.wait()
    callee.wait(code=-9 if dies else 0)
