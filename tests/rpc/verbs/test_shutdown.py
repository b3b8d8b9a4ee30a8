"""Shutting down: together, at once, in every state."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future as Ending
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from telegrad import rpc
from telegrad.errors import (
    NotInitializedError,
    RendezvousError,
    RendezvousTimeoutError,
    WorkerLostError,
)
from telegrad.rendezvous import JoinedJob
from telegrad.rendezvous import control as reminder
from telegrad.rpc import seams
from telegrad.rpc.base import life
from telegrad.rpc.pool.inbox import Inbox
from telegrad.testing import leaks
from telegrad.transport import Exchange
from tests.rpc import remote_code
from tests.rpc.call import cancel_code
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.stream import stream_code

OVER_FAULTS_TOO = True


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads in which agents shut down."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


def end_all(ending: list[Ending[None]]) -> None:
    for each in ending:
        assert each.result(20) is None


def wait_until_it_shuts_down(agent: seams.AgentCore) -> None:
    leaks.wait_until_gone("work", lambda: [] if "shutting down" in repr(agent) else [agent])


def test_graceful_shutdown_serves_until_all_have_called_it(
    pool: ThreadPoolExecutor, job: Job
) -> None:
    first, *others = job.agents
    ending = [pool.submit(agent.shutdown) for agent in others]
    with seams.use_agent(first):
        assert rpc.rpc_sync("w1", remote_code.chain, (["w2", "w0", "w1"],))[-1] == "w1"
        assert not any(each.done() for each in ending)
        first.shutdown()
    end_all(ending)


def test_calls_in_flight_are_answered_before_it_leaves(pool: ThreadPoolExecutor, job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, ("flight",))
        assert remote_code.entered("flight")
        ending = [pool.submit(agent.shutdown) for agent in job.agents]
        assert not future.done()
        remote_code.release("flight")
        end_all(ending)
        assert future.wait() == "flight"


def test_the_verb_waits_for_another_thread_that_closes(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that an `init_rpc` behind it finds the ports free."""
    rpc.init_rpc()
    agent = seams.current_agent()
    closing, may_close = threading.Event(), threading.Event()
    close = seams.AgentCore.close

    def close_slowly(agent: seams.AgentCore, timeout: float, reason: str) -> None:
        close(agent, timeout, reason)
        closing.set()
        assert may_close.wait(20)

    monkeypatch.setattr(seams.AgentCore, "close", close_slowly)
    first = pool.submit(rpc.shutdown)
    assert closing.wait(20)
    assert seams.process_agent() is agent
    second = pool.submit(rpc.shutdown)
    assert not second.done()
    may_close.set()
    assert second.result(20) is None
    assert agent.life.ended
    assert seams.process_agent() is None
    first.result(20)


def test_once_more_inside_itself_it_waits_for_nothing() -> None:
    """As when a signal handler or a finaliser calls it."""
    rpc.init_rpc()
    agent = seams.current_agent()
    called: list[str] = []

    def again() -> None:
        rpc.shutdown()
        called.append("again")

    agent.life.after_close(again)
    agent.life.on_leaving(again)
    rpc.shutdown()
    assert called == ["again"] * 2


def waits_of(name: str) -> dict[str, Callable[[], object]]:
    """What code may wait for at w1, which holds until the gates are opened."""
    call = rpc.rpc_async("w1", remote_code.hold, (f"{name}-call",))
    retried = rpc.rpc_async("w1", cancel_code.hold_again, (f"{name}-retried",), retry=3)
    rref = rpc.remote("w1", remote_code.hold, (f"{name}-value",))
    stream = rpc.stream("w1", stream_code.holds, (f"{name}-stream",))
    for what in ("call", "retried", "value", "stream"):
        assert remote_code.entered(f"{name}-{what}")
    return {
        "a call": call.wait,
        "await": lambda: asyncio.run(awaited(call)),
        "what follows it": call.then(lambda done: done.value()).wait,
        "all of several": lambda: rpc.wait_all([rpc.Future(), call]),
        "a retried call": retried.wait,
        "a fetch": rref.to_here,
        "an item": lambda: list(stream),
    }


async def awaited(future: rpc.Future[str]) -> str:
    return await future


@pytest.mark.parametrize("hurried", [False, True], ids=["at once", "while another thread waits"])
def test_who_leaves_at_once_hears_of_that_alone(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, hurried: bool
) -> None:
    """The others give it up as soon as they hear, which it may notice before it has closed."""
    job = make_job(2)
    agent, name = job.agents[0], f"{job.agents[0].info.incarnation}-own"
    peer, membership = agent.members.find("w1"), agent.attachments[JoinedJob]
    waits = job.on(0, waits_of, name)
    losses: list[object] = []
    agent.inbox.on_loss_at_once(lambda worker, error: losses.append((worker, error)))

    given_up, on_lost = threading.Event(), Inbox.on_lost

    def lost(inbox: Inbox, gone: rpc.WorkerInfo, error: WorkerLostError) -> None:
        on_lost(inbox, gone, error)
        if gone == peer:
            given_up.set()

    monkeypatch.setattr(Inbox, "on_lost", lost)
    closed: list[bool] = []
    close = Exchange.close

    def close_and_note(exchange: Exchange, timeout: float, reason: str, **how: bool) -> None:
        close(exchange, timeout, reason, **how)
        closed.append(True)

    monkeypatch.setattr(Exchange, "close", close_and_note)
    for verb in ("close", "leave"):
        told = getattr(membership, verb)

        def and_heard(*args: object, told: Callable[..., None] = told) -> None:
            told(*args)
            if not closed:
                assert given_up.wait(20)

        monkeypatch.setattr(membership, verb, and_heard)
    with ThreadPoolExecutor(len(waits) + 1) as pool:
        waiting = {what: pool.submit(job.on, 0, wait) for what, wait in waits.items()}
        if hurried:
            pool.submit(agent.shutdown)
            wait_until_it_shuts_down(agent)
        agent.shutdown(graceful=False)
        remote_code.gates.open_all()
        for what, each in waiting.items():
            with pytest.raises(NotInitializedError) as caught:
                each.result(20)
            assert "shut" in str(caught.value), what
    assert losses == []


def test_it_waits_no_longer_than_told(make_job: MakeJob) -> None:
    job = make_job(2)
    with pytest.raises(RendezvousTimeoutError) as info:
        job.agents[0].shutdown(timeout=0.05)
    assert "w1" in info.value.missing
    with pytest.raises(NotInitializedError):
        seams.call(job.agents[0], "w1", remote_code.who)


def test_own_calls_that_are_not_answered_are_named(make_job: MakeJob) -> None:
    job = make_job(2)
    seams.call(job.agents[0], "w1", remote_code.hold, ("named",))
    assert remote_code.entered("named")
    named = r"not answered .*\(1 own call: tests\.rpc\.remote_code:hold on 'w1'\)"
    with pytest.raises(RendezvousTimeoutError, match=named):
        job.agents[0].shutdown(timeout=0.05)
    remote_code.release("named")


def test_a_long_wait_is_told_with_what_it_waits_for(
    pool: ThreadPoolExecutor,
    make_job: MakeJob,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reminder, "FIRST_SECONDS", 0.001)
    job = make_job(2)
    first, second = job.agents
    with caplog.at_level(logging.INFO, "telegrad.rpc.base.life"):
        seams.call(first, "w1", remote_code.hold, ("long",))
        assert remote_code.entered("long")
        ending = [pool.submit(first.shutdown)]
        own = "shutdown waits for 1 own call: tests.rpc.remote_code:hold on 'w1'"
        leaks.wait_until_gone("silence", lambda: [own] * (own not in caplog.messages))
        ending.append(pool.submit(second.shutdown))
        told = "shutdown waits for 1 call that it serves: tests.rpc.remote_code:hold for 'w0'"
        leaks.wait_until_gone("silence", lambda: [told] * (told not in caplog.messages))
        remote_code.release("long")
        end_all(ending)
    # The default level shows a wait for own calls, and none of a worker that only serves.
    levels = {record.getMessage(): record.levelno for record in caplog.records}
    assert (levels[own], levels[told]) == (logging.WARNING, logging.INFO)


def test_who_has_not_called_it_is_told(
    pool: ThreadPoolExecutor,
    make_job: MakeJob,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reminder, "FIRST_SECONDS", 0.001)
    job = make_job(3)
    first, second, third = job.agents
    with caplog.at_level(logging.INFO, "telegrad.rendezvous.joined_job"):
        ending = [pool.submit(third.shutdown)]
        told = "shutdown waits for 'w0', 'w1', which have not called it"
        leaks.wait_until_gone("silence", lambda: [told] * (told not in caplog.messages))
        ending.append(pool.submit(second.shutdown))
        told = "shutdown waits for 'w0', which has not called it"
        leaks.wait_until_gone("silence", lambda: [told] * (told not in caplog.messages))
        first.shutdown()
        end_all(ending)
    # A worker that only serves waits here for as long as the job runs: nothing is wrong.
    told_at = {record.levelno for record in caplog.records if "waits for" in record.getMessage()}
    assert told_at == {logging.INFO}


def test_a_wait_is_told_of_ever_more_rarely() -> None:
    now = [0.0]
    wait = reminder.Reminder(lambda: now[0])
    told = []
    for second in range(3000):
        now[0] = float(second)
        if wait.is_due():
            told.append(second)
            assert not wait.is_due()
    assert told == [2, 8, 26, 80, 242, 728, 1328, 1928, 2528]


def test_a_worker_that_leaves_at_once_holds_nobody_up(pool: ThreadPoolExecutor, job: Job) -> None:
    job.agents[2].shutdown(graceful=False)
    end_all([pool.submit(agent.shutdown) for agent in job.agents[:2]])


def test_callbacks_of_shutdown(make_job: MakeJob) -> None:
    job = make_job(1)
    (agent,) = job.agents
    heard: list[str] = []
    agent.life.before_leaving(lambda seconds: heard.append(f"before {seconds > 0}"))
    agent.life.before_leaving(lambda _: 1 / 0)  # type: ignore[arg-type]
    agent.life.after_close(lambda: heard.append("last"))
    agent.life.after_close(lambda: heard.append("first"))
    agent.shutdown()
    assert heard == ["before True", "first", "last"]


def test_context_managers(make_job: MakeJob) -> None:
    job = make_job(1)
    with seams.agent_of(job.agents[0]) as agent:
        assert agent.name == "w0"
    assert agent.ended

    async def main() -> None:
        async with seams.agent_of(make_job(1).agents[0]) as inner:
            assert await inner.rpc_async("w0", remote_code.add, (1, 2)) == 3
        assert inner.ended

    asyncio.run(main())
    heard: list[str] = []
    failing = make_job(1).agents[0]
    failing.life.before_leaving(lambda _: heard.append("graceful"))
    with pytest.raises(KeyError), seams.agent_of(failing):
        raise KeyError("in the block")
    assert failing.life.ended
    assert not heard


def test_leaving_at_once_ends_a_graceful_shutdown_that_still_serves(
    pool: ThreadPoolExecutor, job: Job
) -> None:
    """The thread that drained was never told, and both waited for the function to return."""
    agent = job.agents[0]
    seams.call(job.agents[1], "w0", remote_code.hold, ("hurry",), timeout=float("inf"))
    assert remote_code.entered("hurry")
    ending = pool.submit(agent.shutdown)
    wait_until_it_shuts_down(agent)
    agent.shutdown(graceful=False)
    assert agent.life.ended
    with pytest.raises(RendezvousError, match="left at once"):
        ending.result(20)
    remote_code.release("hurry")


class Parts:
    """The parts of an agent that ends; notes how long each step may take."""

    def __init__(self, interrupts_in: str = "") -> None:
        self.interrupts_in = interrupts_in
        self.limits: list[float] = []

    def drain(self, deadline: float, *, given_up: bool = True) -> bool:
        if self.interrupts_in == ("drain" if given_up else "own calls"):
            raise KeyboardInterrupt
        return True

    def waits_for(self) -> str:
        return ""

    def own_calls(self) -> int:
        return 0

    def serves_this(self) -> bool:
        return False

    def abandon(self) -> None:
        """Does nothing."""

    def close(self, timeout: float, reason: str) -> None:
        self.limits.append(timeout)


@pytest.mark.parametrize(
    ("graceful", "interrupts_in"), [(False, ""), (True, "own calls"), (True, "drain")]
)
def test_who_leaves_at_once_or_is_interrupted_has_little_time(
    graceful: bool, interrupts_in: str
) -> None:
    """Peers that read nothing kept whoever had pressed Ctrl-C for 10 s."""
    parts, ending = Parts(interrupts_in), life.Life("w0")
    ending.opened()
    with pytest.raises(KeyboardInterrupt) if interrupts_in else nullcontext():
        ending.end(parts, graceful=graceful, timeout=math.inf)
    assert ending.ended
    (limit,) = parts.limits
    assert limit <= life.AT_ONCE_SECONDS / 2 < life.CLOSE_SECONDS / 2
