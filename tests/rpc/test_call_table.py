"""The calls that wait for their replies, and which of them will soon have waited for long enough."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from telegrad import rpc
from telegrad.errors import CallTimeoutError
from telegrad.rpc import seams
from telegrad.rpc.base.interceptor import CallRecord
from telegrad.rpc.call import calling
from telegrad.rpc.call.table import CallTable, PendingCall
from telegrad.rpc.future.future import new_future
from telegrad.rpc.pool.deadlines import Deadline, Deadlines
from telegrad.transport import LoopThread
from telegrad.types import WorkerInfo
from tests.rpc import remote_code
from tests.rpc.conftest import MakeJob

PEER = WorkerInfo("w1", 1, 7)


def add(table: CallTable, started: float, limit: float, *, alone: bool = False) -> PendingCall:
    """Enters a call; one that is left alone has a deadline of its own."""
    future = new_future(None, "a call")
    call = PendingCall(PEER, CallRecord("f"), future, None, started, limit, values=True)
    call.number = table.draw()
    if alone:
        call.deadline = Deadline(Deadlines(LoopThread()), None)
    table.add(call)
    return call


def test_those_that_are_due_are_found_once_they_are() -> None:
    table = CallTable()
    assert table.due_before(1e9) == []
    late, early, never = (add(table, 10.0, limit) for limit in (60.0, 30.0, math.inf))
    assert table.due_before(40.0) == []
    assert table.due_before(40.5) == [early]
    early.deadline = Deadline(Deadlines(LoopThread()), None)
    assert table.due_before(70.5) == [late]
    assert table.take(PEER, late.number) is late
    assert table.due_before(1e9) == []
    assert table.take(PEER, never.number) is never


def test_those_that_expire_otherwise_or_were_given_up_are_not_found() -> None:
    table = CallTable()
    add(table, 0.0, 1.0, alone=True)
    given_up = add(table, 0.0, 1.0)
    assert table.give_up(given_up)
    assert table.due_before(10.0) == []


@pytest.mark.parametrize("timeout", [0.05, 0.3])
def test_a_call_expires_whether_or_not_that_is_soon(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    monkeypatch.setattr(calling, "HOUSEKEEPING_SECONDS", 0.05)
    monkeypatch.setattr(calling, "SOON_SECONDS", 0.1)
    job = make_job(2)
    name = f"expires-{timeout}"
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, (name,), timeout=timeout)
        with pytest.raises(CallTimeoutError, match="took longer than") as raised:
            future.wait(20)
        assert raised.value.elapsed >= timeout
        rpc.rpc_sync("w1", remote_code.release, (name,))


@pytest.mark.parametrize("timeout", [0.5, 10.0])
def test_a_call_has_a_deadline_of_its_own_where_that_is_soon(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    job = make_job(2)
    deadlines, at = list[float](), Deadlines.at

    def noted(self: Deadlines, when: float, callback: Callable[[], None]) -> Deadline:
        deadlines.append(when)
        return at(self, when, callback)

    monkeypatch.setattr(Deadlines, "at", noted)
    with seams.use_agent(job.agents[0]):
        for _ in range(100):
            rpc.rpc_sync("w1", remote_code.who, timeout=timeout)
    if timeout < calling.SOON_SECONDS:
        assert len(deadlines) >= 100
    else:
        assert len(deadlines) < 50
