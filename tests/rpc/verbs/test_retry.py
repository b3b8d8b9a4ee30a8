"""Calls that are made again: of marked functions, to workers that come back, within their time."""

from __future__ import annotations

import dataclasses
import math
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    EncodeError,
    EvictedError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc import seams
from telegrad.rpc.call import delivery
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.pending_call import Again
from telegrad.rpc.verbs.retry import call_again, is_idempotent
from telegrad.testing import leaks
from tests.rpc import remote_code
from tests.rpc.call import cancel_code
from tests.rpc.call.cancel_code import notes
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.rest import wait_until_idle

OVER_FAULTS_TOO = True

gates = remote_code.gates


@pytest.fixture(autouse=True)
def _fresh_notes() -> None:
    notes.begin()


@pytest.fixture
def job(make_job: MakeJob) -> Iterator[Job]:
    """Three workers whose calls do not expire while a test waits; in the end none of w0's waits."""
    made = make_job(3, timeout=120.0)
    yield made
    none_waits(made)


def call(job: Job, rank: int, func: Callable[..., Any], *args: Any, **how: Any) -> rpc.Future[Any]:
    """Calls a function on w1 from the worker of this rank; again once, unless told otherwise."""
    how = {"to": "w1", "retry": 1, **how}
    return job.on(rank, rpc.rpc_async, how.pop("to"), func, args, **how)


def entered(name: str) -> bool:
    return gates(f"{name}-entered").wait(20)


def lose(job: Job, rank: int) -> None:
    job.agents[rank].shutdown(graceful=False)


def known_as_lost(job: Job, rank: int) -> None:
    """Loses a worker; returns once w0 knows."""
    info = job.agents[rank].info
    lose(job, rank)
    leaks.wait_until_gone(
        "is there", lambda: [] if job.agents[0].members.lost(info) else ["w0 thinks so"]
    )


def waits_for_a_return(job: Job, rank: int = 0) -> None:
    calling = job.agents[rank].calling
    leaks.wait_until_gone("waits", lambda: [] if calling.away else ["no call waits"])


def lose_while_it_runs(job: Job, name: str, lost: int = 1, caller: int = 0) -> None:
    """Loses the callee once the call has entered its function; returns when the call waits."""
    assert entered(name)
    lose(job, lost)
    waits_for_a_return(job, caller)


def none_waits(job: Job, rank: int = 0) -> bool:
    """Tells so once none does: the loop may just be looking after one that has ended."""
    calling = job.agents[rank].calling
    leaks.wait_until_gone("waits", lambda: ["a call"] * calling.away)
    return True


# -- the mark


def test_the_mark_and_where_it_may_stand() -> None:
    assert is_idempotent(cancel_code.who_again)
    assert is_idempotent(cancel_code.hold_again_async)
    assert is_idempotent(cancel_code.Marked.above)
    assert is_idempotent(cancel_code.Marked.below)
    assert is_idempotent(cancel_code.Marked.of_the_class)
    assert not is_idempotent(remote_code.who)
    assert cancel_code.Marked.above() == 1
    assert cancel_code.Marked.of_the_class() == 3


@pytest.mark.parametrize("what", [operator.add, cancel_code.Model, 3])
def test_what_takes_no_mark(what: Any) -> None:
    with pytest.raises(TypeError, match="mark"):
        rpc.idempotent(what)


def test_functions_that_are_not_marked_are_never_retried(job: Job) -> None:
    with pytest.raises(ValueError, match=r"hold, which is not marked.*@rpc\.idempotent"):
        call(job, 0, remote_code.hold, "never")
    with seams.use_agent(job.agents[0]), pytest.raises(ValueError, match="not marked"):
        rpc.rpc_sync("w1", operator.add, (1, 2), retry=3)
    assert call(job, 0, operator.add, 1, 2, retry=0).wait() == 3


@pytest.mark.parametrize(
    ("retry", "error"),
    [(-1, ValueError), ("1", TypeError), (1.0, TypeError), (True, TypeError), (None, TypeError)],
)
def test_how_often_is_a_number(job: Job, retry: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="retry must be"):
        call(job, 0, cancel_code.who_again, retry=retry)


def test_errors_of_the_form_are_raised_at_once(job: Job) -> None:
    with pytest.raises(UnknownWorkerError):
        call(job, 0, cancel_code.who_again, to="nobody")
    with pytest.raises(EncodeError):
        call(job, 0, cancel_code.hold_again, object())


# -- what is retried


def test_a_call_that_is_answered_is_made_once(job: Job) -> None:
    served = job.agents[1].statistics().calls_served
    with seams.use_agent(job.agents[0]):
        assert rpc.rpc_sync("w1", cancel_code.who_again, retry=5) == "w1"
        assert rpc.rpc_sync("w0", cancel_code.who_again, retry=5) == "w0"
        assert rpc.rpc_sync(1, cancel_code.Marked.above, retry=5) == 1
        assert rpc.rpc_sync(job.agents[1].info, cancel_code.Marked.below, retry=5) == 2
    assert job.agents[1].statistics().calls_served == served + 3


@pytest.mark.parametrize(
    ("func", "target"),
    [
        (cancel_code.hold_again, lambda job: "w1"),
        (cancel_code.hold_again_async, lambda job: 1),
        (cancel_code.hold_again_later, lambda job: job.agents[1].info),
    ],
    ids=["plain, by name", "coroutine, by rank", "future, by WorkerInfo"],
)
def test_a_call_whose_callee_comes_back(
    job: Job, func: Callable[..., Any], target: Callable[[Job], Any]
) -> None:
    future = call(job, 0, func, "back", to=target(job))
    lose_while_it_runs(job, "back")
    gates("back").set()
    job.rejoin(1)
    assert future.wait() == "back"
    assert [notes("back").get(timeout=20) for _ in range(2)] == ["w1", "w1"]
    assert notes("back").empty()


@pytest.mark.parametrize("lost_before", [False, True])
def test_the_arguments_are_those_of_the_call(job: Job, lost_before: bool) -> None:
    """References, too, travel again; for an observer it is one call."""
    array, observer = np.arange(5.0), mock.Mock()
    job.agents[0].observe(observer)
    with seams.use_agent(job.agents[0]), rpc.RRef(2.0) as factor:
        if lost_before:
            known_as_lost(job, 1)
        future = call(job, 0, cancel_code.total_again, "total", array, factor)
        if not lost_before:
            assert entered("total")
        array[:] = -1.0
        if not lost_before:
            lose(job, 1)
        waits_for_a_return(job)
        gates("total").set()
        job.rejoin(1)
        assert future.wait() == 20.0
    for told in (observer.on_begin, observer.on_end):
        (facts,) = [call.args[0] for call in told.call_args_list if not call.args[0].served]
    assert facts.outcome is seams.Outcome.VALUE
    assert facts.request_bytes > array.nbytes


def test_two_attempts_may_run_at_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that has just found the callee lost need not have ended when the next one runs."""
    kept: list[Again] = []
    monkeypatch.setattr(Calling, "send", lambda *_, again, **__: kept.append(again))
    call_again(job.agents[0], "w1", cancel_code.who_again, (), None, None, retry=1)
    together = threading.Barrier(3, timeout=20)

    def meet() -> None:
        together.wait()

    for _ in range(2):
        kept[0].run(meet)
    together.wait()


# -- what is not


def test_what_the_function_raises_is_its_answer(job: Job) -> None:
    lost = WorkerLostError("of its own", incarnation=job.agents[1].info.incarnation, worker="w1")
    for error in (ConnectionError("of its own"), lost):
        with pytest.raises(type(error), match="of its own"):
            call(job, 0, cancel_code.fail_again, "raises", error).wait()
        assert notes("raises").get(timeout=20) == "ran"
        assert notes("raises").empty()


def test_the_loss_of_somebody_else_is_an_answer_too(job: Job) -> None:
    future = call(job, 0, cancel_code.relay_again, "w2", "relay")
    assert entered("relay")
    lose(job, 2)
    with pytest.raises(WorkerLostError) as info:
        future.wait()
    assert info.value.worker == "w2"
    assert notes("relay").get(timeout=20) == "ran"
    assert notes("relay").empty()


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_eviction_is_no_loss_of_the_callee(job: Job, to: str) -> None:
    future = call(job, 0, cancel_code.hold_again, "evicted", to=to)
    assert entered("evicted")
    own = job.agents[0].info
    job.agents[0].evict(EvictedError("given up", worker="w0", incarnation=own.incarnation))
    with pytest.raises(EvictedError):
        future.wait()


def test_no_more_often_than_it_was_told(job: Job) -> None:
    future = call(job, 0, cancel_code.hold_again, "often")
    lose_while_it_runs(job, "often")
    assert notes("often").get(timeout=20) == "w1"
    job.rejoin(1)
    assert notes("often").get(timeout=20) == "w1"
    lose(job, 1)
    with pytest.raises(WorkerLostError) as info:
        future.wait()
    assert any("sent 2 times" in note for note in info.value.__notes__)


# -- its end


def test_a_worker_that_never_comes_back(job: Job) -> None:
    known_as_lost(job, 1)
    future = call(job, 0, cancel_code.hold_again, "never", timeout=0.5)
    with pytest.raises(CallTimeoutError, match="'w1' did not come back") as info:
        future.wait()
    assert isinstance(info.value.__cause__, WorkerLostError)
    assert info.value.worker == "w1"
    assert info.value.phase == "waiting for the worker to come back"


def test_the_second_attempt_ends_at_the_deadline_of_the_call(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not watched any more, as it had been while it waited for its callee."""
    monkeypatch.setattr(delivery, "SOON_SECONDS", 1.5)
    future = call(job, 0, cancel_code.hold_again, "late", timeout=2.0)
    lose_while_it_runs(job, "late")
    assert notes("late").get(timeout=20) == "w1"
    job.rejoin(1)
    assert notes("late").get(timeout=20) == "w1"
    with pytest.raises(CallTimeoutError, match="it has run there for"):
        future.wait()


def test_a_call_without_a_deadline_waits_as_long_as_a_join_may_take(job: Job) -> None:
    first = job.agents[0]
    options = dataclasses.replace(first.options, init_timeout=0.2)
    object.__setattr__(first, "options", options)  # it is frozen
    future = call(job, 0, cancel_code.hold_again, "endless", timeout=math.inf)
    assert entered("endless")
    lose(job, 1)
    with pytest.raises(WorkerLostError) as info:
        future.wait()
    assert any("did not come back" in note for note in info.value.__notes__)


def test_cancelled_while_it_waits(job: Job) -> None:
    future = call(job, 0, cancel_code.hold_again, "waiting")
    lose_while_it_runs(job, "waiting")
    assert notes("waiting").get(timeout=20) == "w1"
    assert future.cancel()
    assert none_waits(job)
    with pytest.raises(CallCancelledError):
        future.wait()
    second = job.rejoin(1)
    assert call(job, 0, cancel_code.who_again).wait() == "w1"
    assert second.statistics().calls_served == 1
    assert notes("waiting").empty()


def test_cancelled_at_the_second_attempt(job: Job) -> None:
    future = call(job, 0, cancel_code.run_until_cancelled_again, "second")
    lose_while_it_runs(job, "second")
    gates("second-entered").clear()
    gates("second-cancelled").clear()
    job.rejoin(1)
    assert entered("second")
    assert future.cancel()
    assert gates("second-cancelled").wait(20)
    wait_until_idle(job.agents[1])


def test_cancelled_with_the_call_that_made_it(make_job: MakeJob) -> None:
    job = make_job(3)
    future = call(job, 0, cancel_code.retries_for_another, "w2", "outer", retry=0)
    lose_while_it_runs(job, "outer", lost=2, caller=1)
    future.cancel()
    wait_until_idle(job.agents[1])
    assert none_waits(job, 1)


@pytest.mark.parametrize("graceful", [True, False])
def test_a_shutdown_ends_the_wait(make_job: MakeJob, graceful: bool) -> None:
    job = make_job(2)
    future = call(job, 0, cancel_code.hold_again, "shutdown")
    lose_while_it_runs(job, "shutdown")
    job.agents[0].shutdown(graceful=graceful)
    with pytest.raises(NotInitializedError, match="come back"):
        future.wait()
    assert none_waits(job)


def test_a_wait_for_a_return_is_counted(make_job: MakeJob) -> None:
    job = make_job(2)
    agent = job.agents[0]
    assert agent.statistics().pending_calls == 0
    future = call(job, 0, cancel_code.hold_again, "counted")
    assert entered("counted")
    assert agent.statistics().pending_calls == 1  # and not twice
    lose(job, 1)
    waits_for_a_return(job)
    assert agent.statistics().pending_calls == 1
    assert not agent.drain(0.0)
    future.cancel()
    assert agent.statistics().pending_calls == 0
    assert agent.drain(0.0)


def test_a_shutdown_waits_for_what_a_served_call_retries(make_job: MakeJob) -> None:
    """The call that w1 serves goes on, and so does what it waits for."""
    job = make_job(3)
    future = call(job, 0, cancel_code.retries_for_another, "w2", "served", retry=0)
    lose_while_it_runs(job, "served", lost=2, caller=1)
    leaving = threading.Thread(target=job.agents[1].shutdown)
    leaving.start()
    leaks.wait_until_gone(
        "the job", lambda: [each for each in [repr(job.agents[1])] if "running" in each]
    )
    assert job.agents[1].statistics().pending_calls == 1
    gates("served").set()
    job.rejoin(2)
    assert future.wait() is not None
    others = [threading.Thread(target=job.agents[rank].shutdown) for rank in (0, 2)]
    for each in others:
        each.start()
    for each in (leaving, *others):
        each.join(20)
        assert not each.is_alive()
