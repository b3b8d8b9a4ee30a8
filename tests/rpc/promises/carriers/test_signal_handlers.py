"""A signal handler of the main thread that calls while this thread waits for another call."""

from __future__ import annotations

import pytest

from tests.conftest import Programs
from tests.rpc.promises.carriers.program_cases import run_cases

HEAD = """
import collections, os, signal, sys, threading, time
from telegrad import rpc
from telegrad.rpc.future.gate import Gate
from telegrad.transport.io.shield import Shield

gates = collections.defaultdict(threading.Event)
answers, asked, shields = [], [], []
main = threading.main_thread().ident

def held(key):
    gates[key].wait(30)
    return key

def nothing():
    return None

def release(key):
    '''It calls back more often than a thread that waits reads requests.'''
    for _ in range(20): rpc.rpc_sync(0, nothing)
    gates[key].set()
    return key

def handler(*_):
    futures = [rpc.rpc_async(to, release, (KEY,), timeout=20) for to in asked]
    answers.append(futures[0].wait() if len(futures) == 1 else rpc.wait_all(futures)[0])

def note_wait(self, *args, real=Shield.wait):
    if threading.current_thread() is threading.main_thread():
        shields.append(self)
    return real(self, *args)

Shield.wait = note_wait

def place():
    frame = sys._current_frames()[main]
    return frame.f_code, frame.f_lasti

def is_waiting():
    '''The main thread polls; before a move to TCP it sleeps, where no lock of telegrad's is held.'''
    if DIRECT == 'tcp' and (found := place())[0] is Gate._sleep.__code__:
        threading.Event().wait(0.02)
        return place() == found
    return shields and shields[-1].polling

def signals():
    '''Sends the signal once the main thread polls; it never does where another one reads for it.'''
    until, pause = time.monotonic() + 1, threading.Event()
    while not is_waiting() and time.monotonic() < until: pause.wait(0.001)
    os.kill(os.getpid(), signal.SIGUSR1)

signal.signal(signal.SIGUSR1, handler)
agent = rpc.init_rpc(options=rpc.RpcOptions(direct=DIRECT))

def check(wait, to=(1,)):
    answers.clear()
    shields.clear()
    asked[:] = to
    thread = threading.Thread(target=signals)
    thread.start()
    assert wait() == KEY
    thread.join()
    assert answers == [KEY], answers
"""

BEGIN = """
global KEY
KEY = name
"""

CASES = {
    "rpc_sync": "check(lambda: rpc.rpc_sync(1, held, (KEY,)))",
    "wait": "check(lambda: rpc.rpc_async(1, held, (KEY,)).wait())",
    "wait_all of one worker": """
    check(lambda: rpc.wait_all([rpc.rpc_async(1, held, (KEY,)) for _ in range(3)])[0])
    """,
    "wait_all of two workers": """
    check(lambda: rpc.wait_all([rpc.rpc_async(to, held, (KEY,)) for to in (1, 2)])[0], (1, 2))
    """,
    "a handler that asks another worker": """
    def wait():
        future = rpc.rpc_async(1, held, (KEY,))
        rpc.rpc_async(2, held, (KEY,)).then(lambda _: rpc.rpc_async(1, release, (KEY,)))
        return future.wait()
    check(wait, (2,))
    """,
    "many replies that the handler takes in": """
    def wait():
        futures = [rpc.rpc_async(1, held, (KEY,)) for _ in range(6)]
        return futures[-1].wait()
    check(wait)
    """,
}


@pytest.mark.parametrize("direct", [True, "tcp"])
def test_a_signal_handler_may_call(programs: Programs, direct: bool | str) -> None:
    program = HEAD.replace("DIRECT", repr(direct)) + run_cases(CASES, begin=BEGIN)
    for rank in programs.ranks(programs.script(program), 3):
        rank.wait()
