"""Shutting down: together, at once, in every state."""

from __future__ import annotations

import asyncio
import threading

import pytest

from telegrad import rpc
from telegrad.errors import (
    BlockingCallError,
    NotInitializedError,
    RendezvousError,
    RendezvousTimeoutError,
    WorkerLostError,
)
from telegrad.rpc.ambient import process_agent
from telegrad.rpc.shutdown import _State
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob

OVER_FAULTS_TOO = True


def in_thread(func: object, **kwargs: object) -> tuple[threading.Thread, rpc.Future[None]]:
    outcome: rpc.Future[None] = rpc.Future()

    def run() -> None:
        try:
            assert callable(func)
            func(**kwargs)
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_graceful_shutdown_serves_until_all_have_called_it(job: Job) -> None:
    first, *others = job.agents
    ending = [in_thread(agent.shutdown) for agent in others]
    with rpc.use_agent(first):
        assert rpc.rpc_sync("w1", remote_code.chain, (["w2", "w0", "w1"],))[-1] == "w1"
        assert not any(outcome.done() for _, outcome in ending)
        first.shutdown()
    for thread, outcome in ending:
        assert outcome.wait(20) is None
        thread.join()


def test_calls_in_flight_are_answered_before_it_leaves(job: Job) -> None:
    with rpc.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, ("flight",))
        assert remote_code.entered("flight")
        ending = [in_thread(agent.shutdown) for agent in job.agents]
        assert not future.done()
        remote_code.release("flight")
        for thread, outcome in ending:
            assert outcome.wait(20) is None
            thread.join()
        assert future.wait() == "flight"


def test_it_is_idempotent_and_legal_from_several_threads(make_job: MakeJob) -> None:
    job = make_job(1)
    (agent,) = job.agents
    ending = [in_thread(agent.shutdown) for _ in range(4)]
    for thread, outcome in ending:
        assert outcome.wait(20) is None
        thread.join()
    agent.shutdown()
    agent.shutdown(graceful=False)


def test_the_verb_waits_for_another_thread_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an `init_rpc` behind it finds the ports free."""
    agent = rpc.init_rpc()
    closing, may_close = threading.Event(), threading.Event()
    close = agent.close

    def close_slowly(timeout: float, reason: str) -> None:
        close(timeout, reason)
        closing.set()
        assert may_close.wait(20)

    monkeypatch.setattr(agent, "close", close_slowly)
    first, _ = in_thread(rpc.shutdown)
    assert closing.wait(20)
    assert process_agent() is agent
    second, outcome = in_thread(rpc.shutdown)
    assert not outcome.done()
    may_close.set()
    assert outcome.wait(20) is None
    assert agent.ended
    assert process_agent() is None
    for thread in (first, second):
        thread.join()


def test_once_more_inside_itself_it_waits_for_nothing() -> None:
    """As when a signal handler or a finaliser calls it."""
    agent = rpc.init_rpc()
    called: list[str] = []

    def again() -> None:
        rpc.shutdown()
        called.append("again")

    agent.after_close(again)
    agent.on_leaving(again)
    rpc.shutdown()
    assert called == ["again"] * 2


def test_after_shutdown(make_job: MakeJob) -> None:
    job = make_job(2)
    agent = job.agents[0]
    info = agent.worker("w1")
    pending = agent.call("w1", remote_code.hold, ("after",), timeout=float("inf"))
    assert remote_code.entered("after")
    agent.shutdown(graceful=False)
    with pytest.raises((NotInitializedError, WorkerLostError)):
        pending.wait(20)
    with rpc.use_agent(agent):
        assert not rpc.is_initialized()
        with pytest.raises(NotInitializedError, match="was shut down"):
            rpc.rpc_sync("w1", remote_code.who)
    with pytest.raises(NotInitializedError):
        agent.call(info, remote_code.who)
    assert agent.statistics().pending_calls == 0
    remote_code.release("after")


def test_it_waits_no_longer_than_told(make_job: MakeJob) -> None:
    job = make_job(2)
    with pytest.raises(RendezvousTimeoutError) as info:
        job.agents[0].shutdown(timeout=0.05)
    assert "w1" in info.value.missing
    with pytest.raises(NotInitializedError):
        job.agents[0].call("w1", remote_code.who)


def test_own_calls_that_are_not_answered_are_named(make_job: MakeJob) -> None:
    job = make_job(2)
    job.agents[0].call("w1", remote_code.hold, ("named",))
    assert remote_code.entered("named")
    with pytest.raises(RendezvousTimeoutError, match="not answered"):
        job.agents[0].shutdown(timeout=0.05)
    remote_code.release("named")


def test_a_worker_that_leaves_at_once_holds_nobody_up(job: Job) -> None:
    job.agents[2].shutdown(graceful=False)
    ending = [in_thread(agent.shutdown) for agent in job.agents[:2]]
    for thread, outcome in ending:
        assert outcome.wait(20) is None
        thread.join()


def test_on_the_user_loop_it_is_refused(job: Job) -> None:
    with rpc.use_agent(job.agents[0]), pytest.raises(BlockingCallError, match="shutdown"):
        rpc.rpc_sync("w1", remote_code.shuts_down)


def test_callbacks_of_shutdown(make_job: MakeJob) -> None:
    job = make_job(1)
    (agent,) = job.agents
    heard: list[str] = []
    agent.before_leaving(lambda seconds: heard.append(f"before {seconds > 0}"))
    agent.before_leaving(lambda _: 1 / 0)  # type: ignore[arg-type]
    agent.after_close(lambda: heard.append("last"))
    agent.after_close(lambda: heard.append("first"))
    agent.shutdown()
    assert heard == ["before True", "first", "last"]


def test_context_managers(make_job: MakeJob) -> None:
    job = make_job(1)
    with job.agents[0] as agent:
        assert agent.name == "w0"
    assert agent.ended

    async def main() -> None:
        async with make_job(1).agents[0] as inner:
            assert await inner.call("w0", remote_code.add, (1, 2)) == 3
        assert inner.ended

    asyncio.run(main())
    heard: list[str] = []
    failing = make_job(1).agents[0]
    failing.before_leaving(lambda _: heard.append("graceful"))
    with pytest.raises(KeyError), failing:
        raise KeyError("in the block")
    assert failing.ended
    assert not heard


def test_leaving_at_once_ends_a_graceful_shutdown_that_still_serves(job: Job) -> None:
    """The thread that drained was never told, and both waited for the function to return."""
    agent = job.agents[0]
    job.agents[1].call("w0", remote_code.hold, ("hurry",), timeout=float("inf"))
    assert remote_code.entered("hurry")
    thread, outcome = in_thread(agent.shutdown)
    while agent._shutdown._state is not _State.ENDING:
        thread.join(0.001)
    agent.shutdown(graceful=False)
    assert agent.ended
    with pytest.raises(RendezvousError, match="left at once"):
        outcome.wait(20)
    thread.join()
    remote_code.release("hurry")
