"""Cancellation: of calls in every state and form, of what they have called, and what it leaves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import hashlib
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import CallCancelledError, CallTimeoutError, WorkerLostError
from telegrad.rpc import Limits
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.served_call import ServedCall, enter_served_call, last_served_call
from telegrad.rpc.call import serving
from telegrad.rpc.call.serving import CANCEL, EXPIRE
from telegrad.rpc.seams import reference_of
from telegrad.testing import leaks
from telegrad.types import WorkerInfo
from tests.conftest import Programs
from tests.counting import counted
from tests.rpc import remote_code
from tests.rpc.call import cancel_code
from tests.rpc.call.cancel_code import notes
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.rest import assert_at_rest
from tests.rpc.turns import turn

OVER_FAULTS_TOO = True

GUIDE = Path(__file__).parents[3] / "docs" / "cancellation.md"

gates = remote_code.gates


@pytest.fixture(autouse=True)
def _fresh_notes() -> Iterator[None]:
    notes.begin()
    cancel_code.shared.clear()
    yield
    notes.begin()
    cancel_code.shared.clear()


@pytest.fixture
def job(make_job: MakeJob) -> Job:
    """Three workers whose calls do not expire while a test waits."""
    return make_job(3, timeout=120.0)


def call(job: Job, rank: int, func: Callable[..., Any], *args: Any, **how: Any) -> rpc.Future[Any]:
    """Calls a function on w1, or another worker, from the worker of this rank."""
    return job.on(rank, rpc.rpc_async, how.pop("to", "w1"), func, args, **how)


def entered(name: str) -> bool:
    return gates(f"{name}-entered").wait(20)


def cancelled(name: str) -> bool:
    return gates(f"{name}-cancelled").wait(20)


def assert_nothing_is_left(job: Job) -> None:
    """No worker calls or serves anything, and none is counted."""
    assert_at_rest(job.agents)


# -- a future


def test_a_plain_future() -> None:
    future: rpc.Future[int] = rpc.Future()
    heard: list[BaseException | None] = []
    future.add_done_callback(lambda done: heard.append(done.exception()))
    assert future.cancel()
    assert not future.cancel()
    assert future.done()
    assert isinstance(heard[0], CallCancelledError)
    with pytest.raises(CallCancelledError, match="was cancelled"):
        future.wait()
    with pytest.raises(RuntimeError, match="completed already"):
        future.set_result(1)


def test_the_error_is_what_users_of_futures_catch_and_no_cancellation_of_a_task() -> None:
    assert issubclass(CallCancelledError, concurrent.futures.CancelledError)
    assert not issubclass(CallCancelledError, asyncio.CancelledError)
    future: rpc.Future[int] = rpc.Future()

    async def main() -> None:
        async def waits() -> None:
            await future

        task = asyncio.create_task(waits())
        await turn()
        future.cancel()
        with pytest.raises(CallCancelledError):
            await task
        assert not task.cancelled()

    asyncio.run(main())


def test_what_then_returned_is_cancelled_alone_and_its_callback_spared() -> None:
    parent: rpc.Future[int] = rpc.Future()
    ran: list[str] = []
    child = parent.then(lambda done: ran.append("child"))
    other = parent.then(lambda done: 2 * done.value())
    assert child.cancel()
    assert not parent.done()
    parent.set_result(2)
    assert (parent.value(), other.value(), ran) == (2, 4, [])


def test_it_tells_its_maker_before_a_callback_runs_and_once() -> None:
    future: rpc.Future[int] = rpc.Future()
    heard: list[str] = []

    def tell(maker: str, future: rpc.Future[int]) -> None:
        future._let_cancel(lambda: heard.append(maker))

    tell("maker", future)
    future.add_done_callback(lambda _: heard.append("callback"))
    assert future.cancel()
    assert not future.cancel()
    assert heard == ["maker", "callback"]
    completed: rpc.Future[int] = rpc.Future()
    tell("wrong", completed)
    completed.set_result(1)
    assert not completed.cancel()
    assert heard == ["maker", "callback"]


def test_of_many_threads_that_cancel_one_does() -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(100):
            future: rpc.Future[int] = rpc.Future()
            told = [pool.submit(future.cancel) for _ in range(4)]
            assert sorted(each.result() for each in told) == [False, False, False, True]


# -- a call


def test_a_coroutine_is_cancelled(job: Job) -> None:
    future = call(job, 0, cancel_code.awaits_forever, "coroutine")
    assert entered("coroutine")
    assert future.cancel()
    assert not future.cancel()
    with pytest.raises(CallCancelledError, match=r"awaits_forever on 'w1' was cancelled"):
        future.wait()
    assert cancelled("coroutine")
    assert_nothing_is_left(job)
    assert job.on(0, rpc.rpc_sync, "w1", remote_code.who) == "w1"


def test_a_method_through_a_reference_is_cancelled(job: Job) -> None:
    rref = job.on(0, rpc.remote, "w1", cancel_code.Model)
    future = job.on(0, lambda: rref.rpc_async().run("method"))
    assert entered("method")
    assert future.cancel()
    assert cancelled("method")
    with pytest.raises(CallCancelledError):
        future.wait()
    assert_nothing_is_left(job)
    job.on(0, rref.release)


def test_a_coroutine_that_takes_no_cancellation_finishes_for_nobody(job: Job) -> None:
    future = call(job, 0, cancel_code.takes_no_cancellation, "stubborn")
    assert entered("stubborn")
    future.cancel()
    assert notes("stubborn").get(timeout=20) is True
    with pytest.raises(CallCancelledError):
        future.wait()
    assert_nothing_is_left(job)


def test_check_raises_in_a_cancelled_call(job: Job) -> None:
    future = call(job, 0, cancel_code.check_until_it_raises, "check")
    assert entered("check")
    future.cancel()
    error = notes("check").get(timeout=20)
    assert isinstance(error, CallCancelledError)
    assert "'w0'" in str(error)


def test_the_callee_is_told_which_of_both_it_is(
    expire: Callable[[rpc.Future[Any]], None], job: Job
) -> None:
    """By its own clock it cannot know: what arrives at the deadline may come just before it."""
    with counted() as work:
        expired = call(job, 0, cancel_code.run_until_cancelled, "expires")
        assert entered("expires")
        expire(expired)
        with pytest.raises(CallTimeoutError):
            expired.wait()
        call(job, 0, cancel_code.run_until_cancelled, "cancels").cancel()
        told = {f"w0 {kind}" for kind in (EXPIRE, CANCEL)}
        leaks.wait_until_gone("waits", lambda: told - set(work.envelopes))
    number = call(job, 0, cancel_code.number_of_this_call).wait() + 1
    future = call(job, 0, cancel_code.check_until_it_raises, "told")
    assert entered("told")
    job.agents[0].messages.post(job.agents[1].info, EXPIRE, number)
    assert isinstance(notes("told").get(timeout=20), CallTimeoutError)
    with pytest.raises(CallTimeoutError):
        future.wait()
    assert_nothing_is_left(job)


def test_an_answered_call_is_not_cancelled(job: Job) -> None:
    future = call(job, 0, remote_code.add, 1, 2)
    assert future.wait() == 3
    assert not future.cancel()
    assert future.wait() == 3


def test_a_task_that_stops_awaiting_a_shielded_call_leaves_it_alone(job: Job) -> None:
    future = call(job, 0, remote_code.hold, "awaited")

    async def main() -> None:
        async def waits() -> str:
            return str(await asyncio.shield(future))

        task = asyncio.create_task(waits())
        await turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not future.done()
    remote_code.release("awaited")
    assert future.wait() == "awaited"


MOST_EARLY = 50


@pytest.mark.parametrize(
    ("kind", "error"), [(CANCEL, CallCancelledError), (EXPIRE, CallTimeoutError)]
)
def test_a_cancellation_that_overtakes_its_call(
    job: Job, kind: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays travel on lanes of their own; a cancellation does not wait for them."""
    monkeypatch.setattr(serving, "EARLY_CANCELS", MOST_EARLY)
    first, second = job.agents[0], job.agents[1]
    served = second.statistics().calls_served
    number = call(job, 0, cancel_code.number_of_this_call).wait()
    for _ in range(2 * MOST_EARLY):  # one entry, which drives nothing out
        first.messages.post(second.info, kind, number + 2)
    job.on(0, rpc.rpc_sync, "w1", remote_code.who)
    future = call(job, 0, cancel_code.run_until_cancelled, "overtaken")
    with pytest.raises(error, match="by 'w0'"):
        future.wait()
    assert not gates("overtaken-entered").is_set()
    assert second.statistics().calls_served == served + 3


def test_the_oldest_of_the_cancellations_that_are_remembered_goes_first(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "EARLY_CANCELS", MOST_EARLY)
    first, second = job.agents[0], job.agents[1]
    number = call(job, 0, cancel_code.number_of_this_call).wait()
    for early in range(number + 1, number + 2 + MOST_EARLY):
        first.messages.post(second.info, CANCEL, early)
    assert call(job, 0, remote_code.who).wait() == "w1"
    for _ in range(MOST_EARLY):
        with pytest.raises(CallCancelledError, match="by 'w0'"):
            call(job, 0, remote_code.who).wait()
    assert call(job, 0, remote_code.who).wait() == "w1"


# -- admission


def test_a_call_that_waits_for_its_place_is_withdrawn(make_job: MakeJob) -> None:
    job = make_job(2, limits=Limits(pending_calls_per_peer=1))
    running = call(job, 0, remote_code.hold, "place")
    assert remote_code.entered("place")
    waiting = [call(job, 0, cancel_code.run_until_cancelled, f"never-{i}") for i in range(3)]
    own = job.agents[0].statistics()
    assert (own.pending_calls, own.waiting_calls) == (4, 3)
    assert all(future.cancel() for future in waiting)
    assert job.agents[0].statistics().waiting_calls == 0
    last = call(job, 0, remote_code.who)
    remote_code.release("place")
    assert running.wait() == "place"
    assert last.wait() == "w1"
    assert not any(gates(f"never-{i}-entered").is_set() for i in range(3))
    assert_nothing_is_left(job)


# -- what a call has called


@pytest.mark.parametrize("form", ["thread", "coroutine", "future"])
def test_what_a_cancelled_call_waits_for_is_cancelled(job: Job, form: str) -> None:
    func = getattr(cancel_code, f"nested_in_a_{form}")
    future = call(job, 0, func, "w2", form)
    assert entered(form)
    assert future.cancel()
    assert cancelled(form)
    error = notes(form).get(timeout=20)
    if form == "coroutine":  # it sees its own cancellation, not that of what it awaits
        assert type(error) is asyncio.CancelledError
    else:
        assert isinstance(error, CallCancelledError)
    assert_nothing_is_left(job)


@pytest.mark.parametrize("then", [False, True])
def test_a_coroutine_that_awaits_late_sees_its_own_cancellation(job: Job, then: bool) -> None:
    future = call(job, 0, cancel_code.nested_before_the_await, "w2", "late", then)
    assert entered("late")
    assert future.cancel()
    assert type(notes("late").get(timeout=20)) is asyncio.CancelledError
    assert_nothing_is_left(job)


def test_expiry_ends_what_a_call_waits_for(
    expire: Callable[[rpc.Future[Any]], None], job: Job
) -> None:
    future = call(job, 0, cancel_code.nested_in_a_thread, "w2", "nested-expiry")
    assert entered("nested-expiry")
    expire(future)
    with pytest.raises(CallTimeoutError):
        future.wait()
    assert cancelled("nested-expiry")
    assert_nothing_is_left(job)


def test_a_cancelled_call_makes_no_further_ones(job: Job) -> None:
    future = call(job, 0, cancel_code.calls_when_cancelled, "w2", "refused")
    assert entered("refused")
    future.cancel()
    error = notes("refused").get(timeout=20)
    assert "was not sent" in str(error)
    assert "calls_when_cancelled" in str(error)
    assert_nothing_is_left(job)


def test_a_call_knows_of_what_it_has_called_until_that_is_answered(job: Job) -> None:
    assert job.on(0, rpc.rpc_sync, "w1", cancel_code.counts_what_it_has_called, ("w2",)) == [1, 0]


def test_what_an_answered_call_left_behind_goes_on(job: Job) -> None:
    future = call(job, 0, cancel_code.leaves_a_call_behind, "w2", "left")
    future.wait()
    assert not future.cancel()
    assert remote_code.entered("left")
    remote_code.release("left")
    assert notes("left").get(timeout=20) is None
    assert_nothing_is_left(job)


def test_a_future_that_calls_share_is_cancelled_for_one_of_them(job: Job) -> None:
    mine = call(job, 0, cancel_code.waits_with_the_others, "batch")
    theirs = call(job, 2, cancel_code.waits_with_the_others, "batch")
    for _ in range(2):
        assert notes("batch").get(timeout=20) == "waits"
    served = job.agents[1].statistics().calls_served
    mine.cancel()
    leaks.wait_until_gone(
        "calls", lambda: [1] * (served + 1 - job.agents[1].statistics().calls_served)
    )
    assert not theirs.done()
    cancel_code.shared["batch"].set_result("all")
    assert theirs.wait() == "all"
    with pytest.raises(CallCancelledError):
        mine.wait()
    assert_nothing_is_left(job)


def test_the_loss_of_a_caller_cancels_what_its_call_waits_for(job: Job) -> None:
    future = call(job, 0, cancel_code.nested_in_a_thread, "w2", "orphan")
    assert entered("orphan")
    job.agents[0].shutdown(graceful=False)
    assert cancelled("orphan")
    with pytest.raises(Exception, match=r"shut down|left"):
        future.wait()


def test_the_end_of_a_worker_cancels_what_it_serves(job: Job) -> None:
    future = call(job, 0, cancel_code.run_until_cancelled, "end")
    assert entered("end")
    job.agents[1].shutdown(graceful=False)
    assert cancelled("end")
    with pytest.raises(WorkerLostError):
        future.wait()


# -- what a function knows of its call


def test_who_called_what_and_for_how_long(job: Job) -> None:
    answer = job.on(0, rpc.rpc_sync, "w1", cancel_code.describe, timeout=15.0)
    caller, function, gone, remaining, text = answer
    assert caller == "w0"
    assert function.endswith("cancel_code:describe")
    assert not gone
    assert 0 < remaining < 15.5
    assert "by 'w0'" in text
    answer = job.on(0, rpc.rpc_sync, "w1", cancel_code.describe, timeout=math.inf)
    assert answer[3] == math.inf


def test_in_coroutines_and_threads(job: Job) -> None:
    found = job.on(0, rpc.rpc_sync, "w1", cancel_code.describe_from_everywhere)
    assert len(found) == 4
    assert {caller for caller, _ in found} == {"w0"}
    assert {function.rpartition(":")[2] for _, function in found} == {"describe_from_everywhere"}


def test_a_thread_of_a_cancelled_coroutine_is_told(job: Job) -> None:
    """The coroutine has ended by then; the thread cannot be ended, and still wants to know."""
    future = call(job, 0, cancel_code.thread_of_a_cancelled_coroutine, "to-thread")
    assert entered("to-thread")
    future.cancel()
    assert cancelled("to-thread")
    assert_nothing_is_left(job)


# -- the pieces


def served_call() -> ServedCall:
    return ServedCall("w1", WorkerInfo("w0", 0, 1), 1, CallRecord("a function"), math.inf, 0)


def test_hooks_of_a_served_call_run_once_whoever_comes_first() -> None:
    heard: list[str] = []
    before = served_call()
    before.on_cancel(lambda: heard.append("before"))
    before.cancel()
    before.cancel()
    after = served_call()
    after.cancel()
    after.on_cancel(lambda: heard.append("after"))
    ended = served_call()
    ended.on_cancel(lambda: heard.append("ended"))
    ended.end()
    ended.cancel()
    assert heard == ["before", "after"]
    assert not ended.cancelled


def test_the_hooks_come_before_what_was_called() -> None:
    served, nested = served_call(), rpc.Future[int]()
    heard: list[str] = []
    nested.add_done_callback(lambda _: heard.append("nested"))
    served.nests(nested)
    served.on_cancel(lambda: heard.append("coroutine"))
    served.cancel()
    assert heard == ["coroutine", "nested"]


def test_the_last_call_is_seen_while_it_runs_or_was_cancelled() -> None:
    async def main() -> list[bool]:
        served = served_call()
        enter_served_call(served)
        seen = [last_served_call() is served]
        served.end()
        seen.append(last_served_call() is None)
        other = served_call()
        enter_served_call(other)
        other.cancel()
        other.end()
        return [*seen, last_served_call() is other]

    assert asyncio.run(main()) == [True, True, True]


# -- the guide


def test_the_examples_of_the_guide_run(programs: Programs) -> None:
    first, second = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    stop, digest = programs.script(first, "stop.py"), programs.script(second, "digest.py")
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", stop])
    assert "divisor on 'worker1' was cancelled" in output
    assert "stopped: True" in output
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", digest])
    assert hashlib.sha256(b"weights").hexdigest() in output


# -- all of it together


@pytest.mark.parametrize("seed", range(3))
def test_calls_cancelled_at_any_moment_leave_nothing_behind(make_job: MakeJob, seed: int) -> None:
    rng = random.Random(seed)
    limits = Limits(pending_calls_per_peer=20, pending_bytes=50_000)
    job = make_job(3, limits=limits)
    array = np.ones(2000)
    gates("mix").set()
    forms: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (remote_code.add, (1, 2)),
        (remote_code.echo, (array,)),
        (remote_code.hold, ("mix",)),
        (remote_code.chain, (["w2", "w1", "w0"],)),
        (remote_code.async_chain, (["w2", "w1"],)),
        (remote_code.add_later, ("w2", 1, 2)),
        (cancel_code.nested_in_a_future, ("w2", "mix")),
        (cancel_code.nested_in_a_thread, ("w2", "mix")),
        (cancel_code.nested_in_a_coroutine, ("w0", "mix")),
        (cancel_code.awaits_forever, ("mix",)),
        (cancel_code.run_until_cancelled, ("mix",)),
    ]
    endless = (6, 7, 8, 9, 10)
    futures: list[rpc.Future[Any]] = []
    must: list[rpc.Future[Any]] = []
    outcomes: list[bool] = []
    for _ in range(150):
        form = rng.randrange(len(forms))
        func, args = forms[form]
        to = rng.choice(["w0", "w1", "w2"])
        future = call(job, rng.randrange(3), func, *args, to=to)
        (must if form in endless else futures).append(future)
        if rng.random() < 0.5:
            chosen = rng.choice(futures + must)
            outcomes.append(chosen.cancel())
    for future in must:
        future.cancel()
    for future in futures + must:
        try:
            future.wait(20.0)
        except CallCancelledError:
            continue
    assert True in outcomes
    assert_nothing_is_left(job)


def test_a_lost_callee_and_a_cancellation_end_a_call_once(job: Job) -> None:
    future = call(job, 0, cancel_code.run_until_cancelled, "both")
    assert entered("both")
    threads = [
        threading.Thread(target=future.cancel),
        threading.Thread(target=lambda: job.agents[1].shutdown(graceful=False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises((CallCancelledError, WorkerLostError)):
        future.wait()
    assert cancelled("both")
    deadline = time.monotonic() + 20
    assert job.agents[0].drain(deadline)


def test_who_waits_until_another_agent_is_idle_is_none_of_its_calls(job: Job) -> None:
    future = call(job, 0, remote_code.hold, "idle")
    assert entered("idle")
    mine = ServedCall("w1", job.agents[1].info, 10_000, CallRecord("rpc.call"), math.inf, 0)

    def in_a_call_of_another() -> bool:
        enter_served_call(mine)
        return job.agents[1].drain(time.monotonic())

    assert not contextvars.copy_context().run(in_a_call_of_another)
    gates("idle").set()
    assert future.wait() == "idle"


def test_a_value_that_was_not_made_in_time_says_so_to_all_who_ask(
    expire: Callable[[rpc.Future[Any]], None], job: Job
) -> None:
    rref = job.on(0, rpc.remote, "w1", remote_code.hold_async, ("in-time",))
    assert entered("in-time")
    asked = call(job, 0, remote_code.fetch, rref)
    creation = reference_of(rref).creation
    assert creation is not None
    expire(creation)
    with pytest.raises(CallTimeoutError):
        rref.to_here()
    with pytest.raises(CallTimeoutError, match="given up by 'w0'"):
        asked.wait(20)
