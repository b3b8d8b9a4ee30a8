"""What a worker does about one of whose arrival, or predecessor's loss, it hears late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from telegrad import rpc
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.joined_job import MemberEvents
from telegrad.transport.session.guest_list import GuestList
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob


class SlowLine:
    """Holds back what the coordinator says to w1 of arrivals and losses, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Callable[[], None]] = []
        self.slow = False
        self._lock = threading.Lock()
        self.waits = threading.Event()  # somebody at a door
        names: dict[MemberEvents, str] = {}
        take, follow, admits = MemberEvents.on_message, MemberEvents.follow, GuestList.admits

        def followed(events: MemberEvents, info: rpc.WorkerInfo) -> None:
            names[events] = info.name
            follow(events, info)

        async def waited(guests: GuestList, peer: rpc.WorkerInfo, seconds: float) -> None:
            if self.slow and peer not in guests:
                self.waits.set()
            await admits(guests, peer, seconds)

        def on_message(events: MemberEvents, kind: str, body: object) -> None:
            of_w1 = names.get(events) == "w1"
            with self._lock:
                if self.slow and of_w1 and kind in (messages.JOINED, messages.LOST):
                    self.held.append(lambda: take(events, kind, body))
                    return
            take(events, kind, body)

        monkeypatch.setattr(MemberEvents, "on_message", on_message)
        monkeypatch.setattr(MemberEvents, "follow", followed)
        monkeypatch.setattr(GuestList, "admits", waited)

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


def test_a_successor_waits_until_the_news_of_it_is_there(make_job: MakeJob, line: SlowLine) -> None:
    """It was a member as far as the coordinator says; w1 has not heard that, nor of the loss."""
    job = make_job(3)
    assert job.on(0, rpc.rpc_sync, "w1", remote_code.who) == "w1"
    former = job.agents[0].info
    line.slow = True
    job.agents[0].shutdown(graceful=False)
    visit(job)
    line.waits.clear()  # w2 may have heard a moment later, too
    answer = job.on(0, rpc.rpc_async, "w1", remote_code.who)
    assert line.waits.wait(20)
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
