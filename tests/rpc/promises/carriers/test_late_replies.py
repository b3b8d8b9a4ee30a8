"""A reply that comes after the deadline of its call: the deadline decides, however late the loop."""

from __future__ import annotations

from tests.conftest import Programs
from tests.rpc.promises.carriers.program_cases import run_cases

HEAD = """
import asyncio, threading, time
from telegrad import rpc
from telegrad.errors import CallTimeoutError
from telegrad.rpc import seams

def answers_after(seconds):
    threading.Event().wait(seconds)
    return "late"

async def awaited(future):
    return await future

def first(futures):
    return next(rpc.as_completed(futures)).value()

def hold_up_the_loop():
    '''Nothing that telegrad's loop is to do at a deadline happens until what is returned is set.'''
    entered, leave = threading.Event(), threading.Event()
    def hold():
        entered.set()
        leave.wait(30)
    seams.current_agent().deadlines.after(0.0, hold)
    assert entered.wait(30)
    return leave

agent = rpc.init_rpc()

def call():
    return rpc.rpc_async(1, answers_after, (0.2,), timeout=0.05)

def check(wait):
    rpc.rpc_sync(1, answers_after, (0,))
    leave = hold_up_the_loop()
    try:
        value = wait()
    except CallTimeoutError as error:
        assert "took longer than 0.05 s" in str(error), error
        assert "its reply came too late" in str(error), error
    else:
        raise AssertionError(f"{value!r} is no timeout")
    finally:
        leave.set()
"""

CASES = {
    "wait": "check(lambda: call().wait())",
    "rpc_sync": "check(lambda: rpc.rpc_sync(1, answers_after, (0.2,), timeout=0.05))",
    "wait_all": "check(lambda: rpc.wait_all([call(), call()]))",
    "as_completed": "check(lambda: first([call()]))",
    "await": "check(lambda: asyncio.run(awaited(call())))",
    "to_here": "check(lambda: rpc.remote(1, answers_after, (0.2,)).to_here(0.05))",
}


def test_a_reply_after_the_deadline_is_a_timeout(programs: Programs) -> None:
    caller, callee = programs.ranks(programs.script(HEAD + run_cases(CASES)), 2)
    caller.wait()
    callee.wait()
