"""What is kept of peers that have ended: a bounded amount, however many workers come and go."""

from __future__ import annotations

import pytest

from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.transport import shared_loop_thread
from telegrad.transport.session import peers
from telegrad.transport.session.peers import MOST_NAMES, Forgotten
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope
from tests.transport.workers import SECONDS, Floor, Slow, Worker, wait_until

KEPT = 8


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ENDED_PEERS", KEPT)


def meet_and_lose(worker: Worker, count: int) -> list[WorkerInfo]:
    """Has a worker lose so many incarnations, one after the other."""
    lost = [WorkerInfo("comes.and.goes", 1, incarnation) for incarnation in range(1, count + 1)]
    for each in lost:
        worker.exchange.fence(each, "killed")
        wait_until("the loss", lambda: each in dict(worker.recorder.lost))  # noqa: B023
    return lost


def test_those_that_ended_first_are_forgotten(floor: Floor) -> None:
    alice, bob = floor.pair()
    alice.send(bob, 1)
    gone = meet_and_lose(alice, 5 * KEPT)
    assert len(alice.connections) <= 2 * KEPT + 2
    for late in gone[-KEPT:]:
        with pytest.raises(WorkerLostError, match="killed"):
            alice.exchange.post(late, Envelope("test.message"))
    with pytest.raises(UnknownWorkerError):
        alice.exchange.post(gone[0], Envelope("test.message"))
    alice.post(bob, 2)  # who lives is never forgotten, however long ago it was met
    bob.recorder.wait_envelopes(2)


def forgotten(floor: Floor) -> tuple[Worker, Worker, Slow]:
    """Returns two workers that have met; the first has lost and forgotten the second."""
    alice, gate = floor.worker("alice"), Slow(floor.transport())
    bob = floor.worker("bob", transport=gate).knows(alice)
    loop = shared_loop_thread()
    loop.call_soon(gate.go.set)
    bob.send(alice, 1)

    async def shut() -> None:
        gate.go.clear()

    loop.run(shut(), SECONDS)
    alice.exchange.fence(bob.info, "killed")
    meet_and_lose(alice, 3 * KEPT)
    return alice, bob, gate


@pytest.mark.parametrize("names", [MOST_NAMES, 1], ids=["known by name", "not known at all"])
def test_who_was_forgotten_and_comes_back_is_refused(
    floor: Floor, names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would go on with a session of which the other end knows nothing."""
    monkeypatch.setattr(peers, "MOST_NAMES", names)  # 1: the name of those that come and go
    alice, bob, gate = forgotten(floor)
    assert (bob.info.name, bob.info.incarnation) not in alice.connections
    assert alice.exchange.statistics().envelopes_received == 1  # what it has moved is remembered
    shared_loop_thread().call_soon(gate.go.set)
    error = bob.recorder.wait_lost()
    assert error.fenced
    assert "alice has no session with this incarnation any more" in error.reason
    bob_again = floor.worker("bob", incarnation=2).knows(alice)
    bob_again.post(alice, 7)
    assert [each.call for each in alice.recorder.wait_envelopes(2)] == [1, 7]


def test_who_was_lost_before_it_ever_dialled_is_refused_too(floor: Floor) -> None:
    alice, gate = floor.worker("alice"), Slow(floor.transport())
    bob = floor.worker("bob", transport=gate).knows(alice)
    bob.post(alice, 1)
    alice.exchange.fence(bob.info, "killed")
    meet_and_lose(alice, 3 * KEPT)
    alice.exchange.fence(bob.info, "killed once more")
    shared_loop_thread().call_soon(gate.go.set)
    assert bob.recorder.wait_lost().fenced
    assert [worker for worker, _ in alice.recorder.lost].count(bob.info) == 1
    assert not alice.recorder.envelopes


def test_what_is_forgotten_takes_no_more_room_with_time() -> None:
    forgotten = Forgotten()
    for incarnation in range(10_000):
        forgotten.add("comes.and.goes", incarnation)
        forgotten.add(f"came.once{incarnation}", incarnation)
    assert len(forgotten) == MOST_NAMES
    assert WorkerInfo("comes.and.goes", 1, 0) in forgotten
    assert WorkerInfo("comes.and.goes", 1, 9_999) in forgotten
    assert WorkerInfo("comes.and.goes", 1, 10_000) not in forgotten
    assert WorkerInfo("came.once9999", 2, 9_999) in forgotten
    assert WorkerInfo("came.once0", 2, 0) not in forgotten
