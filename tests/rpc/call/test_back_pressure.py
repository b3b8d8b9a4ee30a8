"""Root calls wait for admission, nothing else does, and so nothing waits for ever."""

from __future__ import annotations

import doctest
import gc
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from telegrad import rpc
from telegrad.errors import (
    CallRefusedError,
    CallTimeoutError,
    EncodeError,
    EvictedError,
    NotInitializedError,
    WorkerLostError,
)
from telegrad.rpc import Limits, seams
from telegrad.rpc.call import pending_call
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.testing import leaks
from telegrad.transport import Exchange, LoopThread
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope
from tests.rpc import remote_code
from tests.rpc.base.interceptors import Undone
from tests.rpc.call import pressure_code
from tests.rpc.call.pressure_code import MIB, megabytes, meter
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.rest import assert_at_rest, refusal_of

GUIDE = Path(__file__).parents[3] / "docs" / "back-pressure.md"


@pytest.fixture(autouse=True)
def _fresh_meter() -> Iterator[None]:
    meter.begin()
    yield
    meter.begin()


def strict(**limits: Any) -> dict[str, Any]:
    """The options of a job whose budget is overdrawn after 3 s, which is longer than a test runs.

    A reply that holds an RRef is kept until its receipt, which comes with a heartbeat, every 6 s.
    """
    return {"limits": Limits(**limits), "lost_after": 30.0}


def assert_nothing_is_left(job: Job, *agents: seams.AgentCore) -> None:
    """All calls have ended: neither end of the admission knows of any."""
    assert_at_rest(agents or job.agents)


def wait_until(what: str, come_true: Callable[[], bool]) -> None:
    leaks.wait_until_gone("waits", lambda: [] if come_true() else [what])


# -- who waits ----------------------------------------------------------------------------------


def test_twenty_pushes_fit_a_budget_of_three(make_job: MakeJob) -> None:
    """20 x 1 MiB at once into 4 MiB: what else is in a message leaves room for three."""
    job = make_job(3, **strict(pending_bytes=4 * MIB))
    pushes = [
        job.on(1 + i % 2, rpc.rpc_async, "w0", pressure_code.push, (megabytes(1, i), "pushes"))
        for i in range(20)
    ]
    wait_until("three are in", lambda: meter.inside == 3)
    waiting = [agent.statistics().waiting_calls for agent in job.agents]
    assert waiting[0] == 0
    assert sum(waiting) == 17
    remote_code.release("pushes")
    assert rpc.wait_all(pushes) == [i * MIB for i in range(20)]
    assert meter.most_inside == 3
    assert 3 * MIB < meter.most_bytes <= 4 * MIB
    assert sorted(meter.order) == list(range(20))
    assert_nothing_is_left(job)


def test_calls_to_oneself_never_wait(make_job: MakeJob) -> None:
    job = make_job(1, **strict(pending_calls_per_peer=1, pending_bytes=1))
    with seams.use_agent(job.agents[0]):
        calls = [rpc.rpc_async("w0", pressure_code.push, (megabytes(1), "own")) for _ in range(3)]
        wait_until("all are in", lambda: meter.inside == 3)
        remote_code.release("own")
        assert rpc.wait_all(calls) == [0, 0, 0]
    assert_nothing_is_left(job)


# -- the deadlocks of the naive form ------------------------------------------------------------


def test_a_function_that_holds_the_budget_makes_nested_calls(make_job: MakeJob) -> None:
    job = make_job(3, **strict(pending_bytes=2 * MIB))
    path = ["w2", "w1", "w2", "w0", "w1"]
    with seams.use_agent(job.agents[0]):
        calls = [rpc.rpc_async("w1", pressure_code.relay, (megabytes(2), path)) for _ in range(4)]
        assert rpc.wait_all(calls) == [12 * MIB] * 4
    assert_nothing_is_left(job)


def test_replies_go_while_both_ends_are_full(make_job: MakeJob) -> None:
    """A stream that is paused while its receiver is full would pause the replies on it too."""
    job = make_job(2, **strict(pending_bytes=1, pending_calls_per_peer=3))
    calls = [
        job.on(r, rpc.rpc_async, f"w{1 - r}", pressure_code.swap, (megabytes(2, i),))
        for i in range(8)
        for r in (0, 1)
    ]
    assert [int(each[-1]) for each in rpc.wait_all(calls)] == [1 + i // 2 for i in range(16)]
    assert_nothing_is_left(job)


# -- calls that wait for each other -------------------------------------------------------------


@pytest.mark.parametrize("form", ["push_to_batch", "async_push_to_batch", "waiting_push_to_batch"])
def test_a_batch_that_exceeds_the_budget_fills(make_job: MakeJob, form: str) -> None:
    """Each is answered when all are there: who waits gives back what it was admitted with."""
    job = make_job(3, **strict(pending_bytes=MIB))
    batch = [
        job.on(1 + i % 2, rpc.rpc_async, "w0", getattr(pressure_code, form), (megabytes(1), 6))
        for i in range(6)
    ]
    assert rpc.wait_all(batch) == [6] * 6
    assert_nothing_is_left(job)


def test_waits_that_nobody_sees_let_one_more_in_at_a_time(make_job: MakeJob) -> None:
    job = make_job(2, limits=Limits(pending_bytes=1), lost_after=2.0)
    with seams.use_agent(job.agents[0]):
        batch = [
            rpc.rpc_async("w1", pressure_code.unseen_push_to_batch, (megabytes(1, i), 4))
            for i in range(4)
        ]
        assert rpc.wait_all(batch) == [4] * 4
    assert sorted(meter.order) == list(range(4))
    assert_nothing_is_left(job)


def test_a_permit_of_which_nothing_comes_lapses(make_job: MakeJob) -> None:
    """A caller that asks, and then does not send, holds the others up for a while only."""
    job = make_job(3, limits=Limits(pending_bytes=MIB), lost_after=2.0)
    silent, _, honest = job.agents
    silent.messages.post(silent.members.find("w1"), "rpc.ask", [2**40, 2**50])
    wait_until("permit", lambda: job.agents[1].statistics().admitted_bytes == 2**50)
    assert job.on(2, rpc.rpc_sync, "w1", pressure_code.push, (megabytes(0.5, 1),)) == MIB // 2
    wait_until("end", lambda: job.agents[1].statistics().admitted_bytes == 0)
    silent.messages.post(silent.members.find("w1"), "rpc.withdraw", 2**40)
    assert_nothing_is_left(job, honest, job.agents[1])


def test_methods_of_what_is_not_admitted_yet_hold_nothing_up(make_job: MakeJob) -> None:
    """w2's call is in, and waits for a value whose creation by w0 has yet to ask."""
    job = make_job(3, **strict(pending_bytes=MIB, pending_calls_per_peer=1))
    with seams.use_agent(job.agents[0]):
        held = rpc.rpc_async("w1", remote_code.hold, ("creation",))
        assert remote_code.entered("creation")
        rref = rpc.remote("w1", pressure_code.Store, (megabytes(1, 1),))
        rpc.rpc_sync("w2", pressure_code.keep, (rref,))
    with seams.use_agent(job.agents[2]):
        added = meter.kept.pop().rpc_async().add(megabytes(1, 1))
        wait_until("it is in", lambda: not job.agents[2].statistics().waiting_calls)
    assert job.agents[0].statistics().waiting_calls == 1
    remote_code.release("creation")
    assert held.wait() == "creation"
    assert added.wait() == 2
    del rref
    assert_nothing_is_left(job)


# -- every wait ends ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "asks"),
    [(strict(pending_bytes=1), True), (strict(pending_calls_per_peer=1), False)],
)
def test_a_deadline_ends_the_wait(make_job: MakeJob, options: dict[str, Any], asks: bool) -> None:
    job = make_job(2, **options)
    undone = Undone()
    job.agents[0].codec.add(undone)
    with seams.use_agent(job.agents[0]):
        held = rpc.rpc_async("w1", pressure_code.push, (megabytes(1), "late"))
        wait_until("it is in", lambda: meter.inside == 1)
        late = rpc.rpc_async("w1", pressure_code.push, (megabytes(1),), timeout=0.05)
        with pytest.raises(CallTimeoutError, match=r"was not sent.*raise Limits\.pending_") as info:
            late.wait()
        assert info.value.phase == "waiting for admission"
        assert info.value.worker == "w1"
        assert info.value.elapsed >= 0.05
        assert undone.count == 1
        last = rpc.rpc_async("w1", pressure_code.push, (megabytes(1),))
        remote_code.release("late")
        assert rpc.wait_all([held, last]) == [0, 0]
    assert len(meter.order) == 2
    assert job.agents[1].statistics().calls_served == 2
    assert_nothing_is_left(job)


def test_the_deadline_counts_from_the_call(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(2, **strict(pending_calls_per_peer=1))
    with seams.use_agent(job.agents[0]):
        held = rpc.rpc_async("w1", remote_code.hold, ("count",))
        assert remote_code.entered("count")
        left = rpc.rpc_async("w1", remote_code.time_left, (), timeout=60.0)
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 30.0)
        monkeypatch.setattr(pending_call, "time", later)  # it has waited half a minute
        remote_code.release("count")
        held.wait()
        assert left.wait()[0] < 30.0
        monkeypatch.undo()
    assert_nothing_is_left(job)


@pytest.mark.parametrize(
    ("cancels", "limits"),
    [
        (True, {"pending_calls_per_peer": 1}),
        (False, {"pending_calls_per_peer": 1}),
        (False, {"pending_bytes": 1}),
    ],
)
def test_a_call_given_up_while_it_runs_keeps_its_place(
    make_job: MakeJob,
    expire: Callable[[rpc.Future[Any]], None],
    cancels: bool,
    limits: dict[str, int],
) -> None:
    """The callee still holds its arguments; whoever is next comes when it has ended."""
    job = make_job(2, **strict(**limits))
    with seams.use_agent(job.agents[0]):
        given_up = rpc.rpc_async("w1", pressure_code.push, (megabytes(1), "gone"))
        following = rpc.rpc_async("w1", pressure_code.push, (megabytes(1, 1),))
        wait_until("it is in", lambda: meter.inside == 1)
        if cancels:
            given_up.cancel()
        else:
            expire(given_up)
            with pytest.raises(CallTimeoutError, match="runs on until it checks"):
                given_up.wait()
        assert job.agents[0].statistics().waiting_calls == 1
        remote_code.release("gone")
        assert following.wait() == MIB
    assert meter.most_inside == 1
    assert_nothing_is_left(job)


def test_a_lost_callee_ends_the_wait(make_job: MakeJob) -> None:
    job = make_job(3, **strict(pending_bytes=1, pending_calls_per_peer=2))
    undone = Undone()
    job.agents[0].codec.add(undone)
    with seams.use_agent(job.agents[0]):
        calls = [
            rpc.rpc_async("w2", pressure_code.push, (megabytes(1), "lost"), timeout=math.inf)
            for _ in range(4)
        ]
        wait_until("one is in", lambda: meter.inside == 1)
        job.agents[2].shutdown(graceful=False)
        notes = []
        for call in calls:
            with pytest.raises(WorkerLostError) as info:
                call.wait(20)
            notes.append(info.value.__notes__[-1])
        assert ["was not sent" in note for note in notes] == [False, True, True, True]
        assert undone.count == 3
    remote_code.release("lost")
    assert_nothing_is_left(job, *job.agents[:2])


@pytest.mark.parametrize("end", ["lost while it asks", "closed when it was posted"])
def test_a_message_is_taken_back_once_and_never_when_it_left(end: str) -> None:
    """The end came between the two steps of a call, from another thread.

    A call that asked was taken back by the loss and again by its caller; one that had left was
    taken back too, though the callee has it.
    """
    peer = WorkerInfo("w1", 1, 2)
    undone = Undone()
    codec = MessageCodec(lambda peer, kind, name: name)
    codec.add(undone)

    def post(to: WorkerInfo, envelope: Envelope, *, rides: bool = False) -> None:
        if end.startswith("lost"):
            calling.lose(to, WorkerLostError("gone"))
            raise WorkerLostError("gone")
        calling.close()

    asks = end.startswith("lost")
    limits = Limits(pending_bytes=1 if asks else 256 * MIB)
    deadlines = Deadlines(LoopThread())
    reader = SocketReader(LoopThread(), 0.0)
    exchange = SimpleNamespace(post=post, reader=reader, unconnected=lambda peer: "")
    calling = Calling(
        seams.Life("w0"),
        codec,
        deadlines,
        lambda func, *args: func(*args),
        cast("Exchange", exchange),
        seams.Inbox(seams.Members(peer, 1), cast("seams.Pool", None)),
        limits,
        60.0,
    )
    call = calling.send(peer, "rpc.call", [1], function="f", timeout=math.inf)
    with pytest.raises(WorkerLostError if asks else NotInitializedError):
        call.wait(1.0)
    assert undone.count == (1 if asks else 0)


def test_a_lost_caller_gives_back_what_was_on_its_way(make_job: MakeJob) -> None:
    job = make_job(3, **strict(pending_bytes=1))
    held = job.on(2, rpc.rpc_async, "w0", pressure_code.push, (megabytes(1), "caller"))
    wait_until("one is in", lambda: meter.inside == 1)
    waiting = job.on(2, rpc.rpc_async, "w0", pressure_code.push, (megabytes(1),))
    gone, peer = job.agents[2], job.agents[2].members.find("w1")
    gone.messages.post(peer, "rpc.ask", [1, 1])  # admitted at w1, and never sent
    wait_until("it is admitted", lambda: job.agents[1].statistics().admitted_bytes == 1)
    gone.shutdown(graceful=False)
    other = job.on(1, rpc.rpc_async, "w0", pressure_code.push, (megabytes(1, 1),))
    for each in (held, waiting):
        with pytest.raises((NotInitializedError, WorkerLostError)):
            each.wait(20)
    remote_code.release("caller")
    assert other.wait() == MIB
    assert_nothing_is_left(job, *job.agents[:2])


def test_a_graceful_shutdown_sends_what_waits(make_job: MakeJob) -> None:
    job = make_job(2, **strict(pending_bytes=1))
    calls = [
        job.on(0, rpc.rpc_async, "w1", pressure_code.push, (megabytes(1, 1), "shutdown"))
        for _ in range(4)
    ]
    wait_until("one is in", lambda: meter.inside == 1)
    ending = [threading.Thread(target=agent.shutdown) for agent in job.agents]
    for thread in ending:
        thread.start()
    remote_code.release("shutdown")
    assert rpc.wait_all(calls) == [MIB] * 4
    for thread in ending:
        thread.join()


@pytest.mark.parametrize("evicted", [False, True])
def test_leaving_at_once_ends_the_wait(make_job: MakeJob, evicted: bool) -> None:
    job = make_job(2, **strict(pending_bytes=1))
    agent, undone = job.agents[0], Undone()
    agent.codec.add(undone)
    calls = [
        seams.call(agent, "w1", pressure_code.push, (megabytes(1), "leave"), timeout=math.inf)
        for _ in range(3)
    ]
    wait_until("one is in", lambda: meter.inside == 1)
    if evicted:
        agent.evict(EvictedError("the job goes on without 'w0'", worker="w0", reason="fenced"))
    else:
        agent.shutdown(graceful=False)
    for call in calls:
        with pytest.raises(EvictedError if evicted else (NotInitializedError, WorkerLostError)):
            call.wait(20)
    assert undone.count == 2
    assert agent.statistics().waiting_calls == 0
    agent.shutdown(graceful=False)
    remote_code.release("leave")
    assert_nothing_is_left(job, job.agents[1])


# -- what ends gives back -----------------------------------------------------------------------


def test_errors_give_back(make_job: MakeJob) -> None:
    job = make_job(2, **strict(pending_bytes=1))
    agent = job.agents[0]
    peer = agent.members.find("w1")
    with seams.use_agent(agent):
        for _ in range(2):
            with pytest.raises(remote_code.CustomError, match="refused 1048576 bytes"):
                rpc.rpc_sync("w1", pressure_code.fail_with, (megabytes(1),))
            with pytest.raises(CallRefusedError):
                rpc.rpc_sync("w1", json.loads, (b"x" * MIB,))
            with pytest.raises(TypeError):
                rpc.rpc_sync("w1", pressure_code.push, [megabytes(1), 1, 2])
            with pytest.raises(EncodeError):
                rpc.rpc_sync("w1", remote_code.give_unsendable, (), {})
            unknown = agent.calling.send(peer, "no.such.kind", b"x" * MIB, function="unknown")
            with pytest.raises(Exception, match="no handler"):
                unknown.wait()
            garbage = agent.calling.send(peer, "rpc.call", b"x" * MIB, function="garbage")
            with pytest.raises(Exception, match="cannot be read as far as"):
                garbage.wait()
        assert rpc.rpc_sync("w1", pressure_code.push, (megabytes(1, 1),)) == MIB
    assert_nothing_is_left(job)


def test_a_call_that_expired_on_its_way_gives_back(
    make_job: MakeJob, most_threads: Callable[[int], None]
) -> None:
    """It is dropped where it arrives."""
    most_threads(1)
    job = make_job(2, **strict(pending_bytes=1), num_threads=1)
    with seams.use_agent(job.agents[0]):
        calls = [
            rpc.rpc_async("w1", pressure_code.push, (megabytes(1), "expired"), timeout=0.2)
            for _ in range(3)
        ]
        for call in calls:
            with pytest.raises(CallTimeoutError):
                call.wait()
        remote_code.release("expired")
        assert_nothing_is_left(job)
    caller, callee = job.agents
    big = pressure_code.push, (megabytes(1, 1),), MIB
    leaks.wait_until_gone("refusal", lambda: refusal_of(caller, callee, *big))
    assert_nothing_is_left(job)


def test_a_call_that_turns_out_to_fit_no_envelope_gives_back(make_job: MakeJob) -> None:
    job = make_job(2, **strict(pending_bytes=1))
    bulky = Undone(bulky=False)
    job.agents[0].codec.add(bulky)
    future = seams.call(job.agents[0], "w1", pressure_code.push, (megabytes(1),))
    with pytest.raises(EncodeError, match="too big"):
        future.wait()
    assert bulky.count == 1
    assert_nothing_is_left(job)


def test_creations_that_expire_before_they_are_sent_leave_no_rref(make_job: MakeJob) -> None:
    job = make_job(2, **strict(pending_bytes=1))
    with seams.use_agent(job.agents[0]):
        held = rpc.rpc_async("w1", pressure_code.push, (megabytes(1), "creations"))
        wait_until("it is in", lambda: meter.inside == 1)
        rref = rpc.remote("w1", pressure_code.Store, (megabytes(1),), timeout=0.05)
        with pytest.raises(CallTimeoutError):
            rref.to_here()
        remote_code.release("creations")
        assert held.wait() == 0
        del rref

        def gone() -> bool:
            gc.collect()  # errors hold frames, and these the references that failed
            return not any(
                agent.statistics().user_rrefs + agent.statistics().owned_rrefs
                for agent in job.agents
            )

        wait_until("RRefs are gone", gone)
    assert_nothing_is_left(job)


def test_garbage_about_admission_is_refused(make_job: MakeJob) -> None:
    job = make_job(2, **strict(pending_bytes=10))
    agent = job.agents[0]
    peer = agent.members.find("w1")
    for kind in ("rpc.ask", "rpc.withdraw", "rpc.admit"):
        for body in (None, -1, True, [1], [1, -2], [1, 2.0], ["x", 1], [1, 2**63], 2**63, "x"):
            agent.messages.post(peer, kind, body)
    with seams.use_agent(agent):
        assert rpc.rpc_sync("w1", pressure_code.push, (megabytes(1, 1),)) == MIB
    assert_nothing_is_left(job)


def test_the_example_of_the_guide_runs() -> None:
    failed, attempted = doctest.testfile(str(GUIDE), module_relative=False)
    assert failed == 0
    assert attempted > 0
