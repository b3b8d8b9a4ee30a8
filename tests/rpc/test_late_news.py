"""What a worker does about one of whose arrival, or predecessor's loss, it hears late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from telegrad import rpc
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.joined_job import MemberEvents
from telegrad.rpc import seams
from telegrad.testing import leaks
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob


class SlowLine:
    """Holds back what the coordinator says to w1 of arrivals and losses, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Callable[[], None]] = []
        self.slow = False
        self._lock = threading.Lock()
        take = MemberEvents.on_message

        def on_message(events: MemberEvents, kind: str, body: object) -> None:
            of_w1 = events._self is not None and events._self.name == "w1"
            with self._lock:
                if self.slow and of_w1 and kind in (messages.JOINED, messages.LOST):
                    self.held.append(lambda: take(events, kind, body))
                    return
            take(events, kind, body)

        monkeypatch.setattr(MemberEvents, "on_message", on_message)

    def let_go(self) -> None:
        with self._lock:
            self.slow, held = False, self.held
        for each in held:
            each()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowLine]:
    slow = SlowLine(monkeypatch)
    yield slow
    slow.let_go()


def at_the_door(agent: seams.AgentCore) -> None:
    guests = agent._exchange._guests
    assert guests is not None
    leaks.wait_until_gone("doors with nobody", lambda: [] if guests._waiting else ["w1's"])


def test_a_successor_waits_until_the_news_of_it_is_there(make_job: MakeJob, line: SlowLine) -> None:
    """It was a member as far as the coordinator says; w1 has not heard that, nor of the loss."""
    job = make_job(3)
    assert job.on(0, rpc.rpc_sync, "w1", remote_code.who) == "w1"
    former = job.agents[0].info
    line.slow = True
    job.agents[0].shutdown(graceful=False)
    visit(job)
    answer = job.on(0, rpc.rpc_async, "w1", remote_code.who)
    at_the_door(job.agents[1])
    assert job.agents[0].info not in job.agents[1].workers()
    assert not answer.done()
    line.let_go()
    assert answer.wait() == "w1"
    assert job.agents[0].info in job.agents[1].workers()
    assert former not in job.agents[1].workers()


def visit(job: Job) -> None:
    """w0 comes back, of which w2 hears at once, and w1 when it is told."""
    job.rejoin(0)
    assert job.on(0, rpc.rpc_sync, "w2", remote_code.who) == "w2"
