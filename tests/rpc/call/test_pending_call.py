"""A call that takes too long says where it was: not sent, in a queue, running, or waiting itself."""

from __future__ import annotations

import math
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import CallTimeoutError
from telegrad.rpc import seams
from telegrad.rpc.call.pending_call import words
from telegrad.rpc.pool import pool
from tests.rpc import remote_code
from tests.rpc.conftest import ALL_SECONDS, MakeJob, Times
from tests.transport.workers import wait_until


def said_of(times: Times, future: rpc.Future[Any]) -> str:
    """Returns the words of the time-out of a call."""
    call = times.next(future)
    wait_until("the answer", lambda: call.told is not None)
    times.next(future)
    with pytest.raises(CallTimeoutError) as raised:
        future.wait(20)
    return str(raised.value)


def test_it_runs(times: Times, make_job: MakeJob) -> None:
    job = make_job(2)
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, ("runs",))
        assert remote_code.entered("runs")
        assert "reply); it has run there for 0." in said_of(times, future)
        remote_code.release("runs")


def test_it_waits_for_another_worker(times: Times, make_job: MakeJob) -> None:
    job = make_job(3)
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.nested_forever, ("w2", "waits"))
        assert remote_code.entered("waits")
        said = said_of(times, future)
        remote_code.release("waits")
    assert "s, and waits itself for the call of tests.rpc.remote_code:hold on 'w2'; " in said


def test_it_is_in_a_queue(times: Times, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STALLED_SECONDS", ALL_SECONDS)
    job = make_job(2, num_threads=1)
    with seams.use_agent(job.agents[0]):
        first = rpc.rpc_async("w1", remote_code.hold, ("queue",))
        assert remote_code.entered("queue")
        second = rpc.rpc_async("w1", remote_code.who)
        said = said_of(times, second)
        remote_code.release("queue")
        assert first.wait() == "queue"
    assert "it has waited there for a thread of the pool for 0." in said


@pytest.mark.parametrize(
    ("down", "where"),
    [
        ("no connection to 'w1' is up (last dial: it broke)", "no connection to 'w1' is up"),
        ("", "its callee did not say where it is"),
    ],
)
def test_a_callee_that_says_nothing(
    times: Times, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, down: str, where: str
) -> None:
    job = make_job(2)
    monkeypatch.setattr(type(job.agents[0].exchange), "unconnected", lambda _, peer: down)
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, ("nothing",))
        assert remote_code.entered("nothing")
        call = times.next(future)
        wait_until("the answer", lambda: call.told is not None)
        call.told = None  # it never came
        times.next(future)
        with pytest.raises(CallTimeoutError, match=f"waiting for the reply.; {where}"):
            future.wait(20)
        remote_code.release("nothing")


@pytest.mark.parametrize(
    "said",
    [None, [], [2, 1.0], [2, 1, []], [7, 1.0, []], ["2", 1.0, []], [2, 1.0, "calls"], {"where": 2}],
)
def test_what_is_no_answer_is_passed_over(said: object) -> None:
    assert words(said) == ""


def test_an_answer_may_be_as_long_as_it_likes() -> None:
    said = words([2, math.inf, ["x" * 10_000, 7, "\x1b[31m", "d", "e"]])
    assert len(said) < 400
    assert "\x1b" not in said
    assert said.endswith("and others")
