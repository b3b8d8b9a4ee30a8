"""Whoever waits for calls to workers of its host reads their replies itself, however it waits."""

from __future__ import annotations

import textwrap

import pytest

from telegrad.transport.io.loop_watch import MOST_REQUESTS
from telegrad.transport.io.spin import longest_spin
from tests.conftest import Programs
from tests.rpc.promises.carriers.program_cases import run_cases

CALLS = 50
BATCHES = 5  # a heartbeat or a held-up worker adds to what calls take: the least count is their own

ATTEMPTS = 3  # where the machine is busy, another thread may come to read before this one waits

BEGIN = """
global KEY
KEY = name
rpc.wait_all(releases)  # nothing of the case before is on its way
releases.clear()
"""

HEAD = """
import asyncio, collections, selectors, sys, threading, time
from telegrad import rpc
from telegrad.errors import CallCancelledError, CallTimeoutError
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.pool.inbox import Inbox
from telegrad.rpc.future.gate import Gate
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.transport.io import loop_watch, spin as looking
from telegrad.transport.io.loop_watch import LoopWatch
from telegrad.transport.io.shield import Shield

LoopWatch.is_stuck = lambda self: False  # a loop that the machine holds up is not to be given up
gates = collections.defaultdict(rpc.Future)
readers, requests = [], []

async def held(key, value):
    await asyncio.shield(gates[key])  # several calls await one
    return value

def release(key):
    gates[key].set_result(None)

def nothing():
    return None

def call_back(times):
    for _ in range(times): rpc.rpc_sync(0, nothing)

def note(self, peer, envelope, real=Calling.on_reply):
    readers.append(threading.current_thread().name)
    return real(self, peer, envelope)

Calling.on_reply = note

def note_any(self, peer, envelope, real=Inbox.on_envelope):
    if not envelope.reply: requests.append(threading.current_thread().name)
    return real(self, peer, envelope)

Inbox.on_envelope = note_any
loop_watch.WANTED_SECONDS = float("inf")  # whatever runs beside the tests
looking.SPIN_SECONDS = LONGEST
agent = rpc.init_rpc()
PEERS = range(1, agent.world_size)
MAIN = ["MainThread"]

def calls(key, times=12):
    return [rpc.rpc_async(peer, held, (key, n)) for n in range(times) for peer in PEERS]

came_to_read = []
releases = []
pause = threading.Event()

def comes_to_read(is_waiting):
    '''Waits until the main thread reads; it never does where another one did when it began.'''
    until = time.monotonic() + 1
    while not is_waiting() and time.monotonic() < until: pause.wait(0.0005)
    came_to_read.append(is_waiting())

def read_here(replies):
    return not came_to_read[0] or set(readers[:replies]) == set(MAIN)

def in_thread(key, is_waiting):
    '''Has another thread let the replies come, once this one reads.'''
    came_to_read.clear()
    def run():
        comes_to_read(is_waiting)
        for peer in PEERS:
            releases.append(rpc.rpc_async(peer, release, (key,)))
    readers.clear()
    thread = threading.Thread(target=run)
    thread.start()
    return thread

waits = {}  # threads that read, with what they poll

def note_wait(self, spin, poll, *args, real=Shield.wait):
    waits[threading.current_thread()] = poll.__self__
    try:
        return real(self, spin, poll, *args)
    finally:
        del waits[threading.current_thread()]

Shield.wait = note_wait

def reads():
    return threading.main_thread() in waits

def on_loop(key):
    '''Lets the replies come, once the loop that runs here reads.'''
    def run():
        readers.clear()
        for peer in PEERS:
            releases.append(rpc.rpc_async(peer, release, (key,)))
    asyncio.get_running_loop().call_soon(run)

if agent.rank == 0:
    for peer in PEERS: rpc.rpc_sync(peer, nothing)
"""

ONE = {
    "collect_all": """
    futures = calls(KEY)
    thread = in_thread(KEY, reads)
    assert [each.value() for each in rpc.collect_all(futures).wait()] == list(range(12))
    assert read_here(12), readers
    thread.join()
    """,
    "as_completed": """
    futures = calls(KEY)
    thread = in_thread(KEY, reads)
    assert sorted(each.value() for each in rpc.as_completed(futures)) == list(range(12))
    assert read_here(1), readers
    thread.join()
    """,
    "a call to its own worker": """
    waited = []
    def note_thread(self, *args, real=SocketReader.wait):
        waited.append(threading.current_thread().name)
        return real(self, *args)
    def main_waits():
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None and frame.f_code is not Gate.wait.__code__: frame = frame.f_back
        return frame is not None
    def run():
        comes_to_read(main_waits)
        gate.set_result(None)
    gate, future = gates[KEY], rpc.rpc_async(0, held, (KEY, 0))
    thread = threading.Thread(target=run)
    real, SocketReader.wait = SocketReader.wait, note_thread
    try:
        thread.start()
        assert future.wait() == 0
    finally:
        SocketReader.wait = real
    thread.join()
    assert MAIN[0] not in waited  # no message brings the reply: others read what comes
    """,
    "wait_all ends with its time": """
    futures = calls(KEY)
    try:
        rpc.wait_all(futures, timeout=0.05)
    except CallTimeoutError as error:
        assert "12 of 12" in str(error), error
    else:
        raise AssertionError
    rpc.rpc_sync(1, release, (KEY,))
    assert rpc.wait_all(futures) == list(range(12))
    """,
    "wait_all ends when one is cancelled": """
    futures = calls(KEY)
    def cancel():
        comes_to_read(reads)
        futures[3].cancel()
    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        rpc.wait_all(futures)
    except CallCancelledError:
        thread.join()
    else:
        raise AssertionError
    rpc.rpc_sync(1, release, (KEY,))
    rpc.wait_all([*futures[:3], *futures[4:]])
    """,
    "wait_all in a loop of the user's": """
    async def main():
        futures = calls(KEY)
        thread = in_thread(KEY, reads)
        assert rpc.wait_all(futures) == list(range(12))
        thread.join()
        assert read_here(12), readers
    asyncio.run(main())
    """,
    "an asynchronous as_completed": """
    async def main():
        futures = calls(KEY)
        on_loop(KEY)
        assert sorted([each.value() async for each in rpc.as_completed(futures)]) == list(range(12))
        assert MAIN[0] in readers, readers
    asyncio.run(main())
    """,
    "an awaited call that is cancelled, and the next": """
    async def main():
        async def value(future): return await future
        (cancelled,) = calls("cancelled", 1)
        task = asyncio.create_task(value(cancelled))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        (future,) = calls(KEY, 1)
        on_loop(KEY)
        assert await future == 0
        assert MAIN[0] in readers, readers  # others may have read that one was cancelled
    asyncio.run(main())
    came = threading.Event()  # nobody awaits any more: telegrad's own threads read
    rpc.rpc_async(1, nothing).add_done_callback(lambda _: came.set())
    assert came.wait(20)
    """,
}

CALLED_BACK = {
    "waits": "[each.wait() for each in futures()]",
    "waits for all": "rpc.wait_all(futures())",
    "awaits": """
    async def main():
        await rpc.gather([(peer, call_back, (50,)) for peer in PEERS])
    asyncio.run(main())
    """,
}

MANY = {
    "wait_all": """
    futures = calls(KEY)
    thread = in_thread(KEY, reads)
    assert sorted(rpc.wait_all(futures)) == sorted(list(range(12)) * len(PEERS))
    assert read_here(24), readers
    thread.join()
    assert rpc.wait_all(calls(KEY, 2)) == [0, 0, 1, 1]
    """,
    "an awaited gather": """
    async def main():
        future = rpc.gather([(peer, held, (KEY, n)) for n in range(12) for peer in PEERS])
        on_loop(KEY)
        assert sorted(await future) == sorted(list(range(12)) * len(PEERS))
        assert set(readers[:24]) == set(MAIN), readers
    asyncio.run(main())
    """,
}

COUNTS = """
    class Loop(asyncio.SelectorEventLoop):
        def __init__(self):
            self.turns = self.slept = self.changes = 0
            selector = selectors.DefaultSelector()
            super().__init__(selector)
            real = selector.select
            def select(timeout=None):
                self.turns += 1
                self.slept += timeout is None or timeout > 0
                return real(timeout)
            selector.select = select
        def add_reader(self, *args):
            self.changes += 1
            return super().add_reader(*args)
        def remove_reader(self, *args):
            self.changes += 1
            return super().remove_reader(*args)
    functions = 0
    def count(frame, event, argument):
        nonlocal functions
        functions += event == "call"
    async def main():
        loop = asyncio.get_running_loop()
        nonlocal functions
        for _ in range(10):
            await rpc.rpc_async(1, nothing)
        for _ in range(BATCHES):
            functions = loop.turns = loop.slept = loop.changes = 0
            sys.setprofile(count)
            for _ in range(CALLS):
                await rpc.rpc_async(1, nothing)
            sys.setprofile(None)
            print(loop.turns / CALLS, loop.slept / CALLS, loop.changes, functions / CALLS, flush=True)
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())
"""


# Python functions of one awaited call that its loop sleeps for, turns of the loop included; it was
# some 180.
MOST_FUNCTIONS = 155


def run(programs: Programs, body: str, workers: int, *, spin: float = 0.0) -> str:
    """Runs a program whose rank 0 does what `body` says; returns what that wrote."""
    source = HEAD.replace("LONGEST", str(spin)) + body
    caller, *others = programs.ranks(programs.script(source), workers)
    written = caller.wait()
    for each in others:
        each.wait()
    return written


def test_of_one_worker(programs: Programs) -> None:
    run(programs, run_cases(ONE, begin=BEGIN, attempts=ATTEMPTS), 2)


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 3])
def test_calls_that_come_while_one_waits_are_read_by_those_who_run_them(
    programs: Programs, workers: int
) -> None:
    before = """
    def futures():
        return [rpc.rpc_async(peer, call_back, (50,)) for peer in PEERS]
    requests.clear()
    """
    after = f"""
    mine = requests.count(MAIN[0])
    assert len(requests) >= 50 * len(PEERS), requests
    most = {MOST_REQUESTS} + len(PEERS) - 1  # of one wait: all peers' sockets may be ready at once
    assert mine <= most * len(PEERS), mine
    """
    cases = {
        name: "".join(map(textwrap.dedent, (before, body, after)))
        for name, body in CALLED_BACK.items()
    }
    run(programs, run_cases(cases), workers)


@pytest.mark.long
def test_of_several_workers(programs: Programs) -> None:
    run(programs, run_cases(MANY, begin=BEGIN, attempts=ATTEMPTS), 3)


def counted(programs: Programs, *, spin: float) -> tuple[float, float, float, float]:
    """Returns what an awaited call takes: turns of its loop, sleeps, watches, functions."""
    body = COUNTS.replace("CALLS", str(CALLS)).replace("BATCHES", str(BATCHES))
    lines = run(programs, run_cases({"counts": body}), 2, spin=spin).splitlines()
    batches = [[float(each) for each in line.split()] for line in lines]
    assert len(batches) == BATCHES
    turns, slept, changes, functions = map(min, zip(*batches, strict=True))
    return turns, slept, changes, functions


@pytest.mark.long
def test_an_awaited_call_at_rest_does_not_sleep(programs: Programs) -> None:
    if not longest_spin():
        pytest.skip("looking needs two processors")
    _, slept, changes, _ = counted(programs, spin=0.1)
    assert slept <= 0.1, slept  # where the machine holds the callee up
    assert changes <= 0.2 * CALLS, changes  # the loop watches on from call to call


@pytest.mark.long
def test_an_awaited_call_where_nobody_may_look(programs: Programs) -> None:
    turns, slept, _, functions = counted(programs, spin=0.0)
    assert slept <= 1.1, slept
    assert turns <= 3.2, turns
    assert functions <= MOST_FUNCTIONS, functions
