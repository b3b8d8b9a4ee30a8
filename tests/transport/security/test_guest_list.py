"""Who is let in: the members that the coordinator has told of; news that is late delays, no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from telegrad.transport import GuestList
from telegrad.transport.security.audit import CONNECTION_REFUSED, DIAL_REFUSED
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.session.dial import LONGEST_UNANNOUNCED
from telegrad.types import WorkerInfo
from tests.audit_log import AuditLog
from tests.transport.workers import (
    SECONDS,
    TICK,
    Floor,
    ManualClock,
    Worker,
    let_pass,
    over_one_transport,
    settled,
    wait_until,
)

BOUND = 40 * TICK
PATIENCE = 1000.0  # more than any wait of a test


# -- the list ----------------------------------------------------------------------------------------


NEW, OLD = WorkerInfo("w", 1, 7), WorkerInfo("w", 1, 5)


def refused(guests: GuestList, peer: WorkerInfo) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        asyncio.run(guests.admits(peer, 0.0))
    return caught.value


def test_the_very_incarnation_and_rank() -> None:
    guests = GuestList()
    guests.add([OLD])
    asyncio.run(guests.admits(OLD, 0.0))
    for other in (NEW, WorkerInfo("w", 2, 5), WorkerInfo("v", 1, 5)):
        error = refused(guests, other)
        assert error.reason is Reason.UNANNOUNCED
        assert f"{other.name!r} (rank {other.rank}, incarnation {other.incarnation})" in error.words


def test_an_older_one_is_gone() -> None:
    guests = GuestList()
    guests.add([NEW])
    error = refused(guests, OLD)
    assert error.reason is Reason.FENCED
    assert "incarnation 7 has taken its place" in error.words


def test_who_is_taken_off_is_let_in_no_more() -> None:
    guests = GuestList()
    guests.add([OLD])
    guests.remove(OLD)
    guests.remove(OLD)
    assert refused(guests, OLD).reason is Reason.UNANNOUNCED
    guests.add([NEW])
    assert refused(guests, OLD).reason is Reason.FENCED


def test_a_closed_list_keeps_whom_it_has() -> None:
    guests = GuestList()
    guests.add([OLD])
    guests.close("the coordinator is lost")
    guests.close("something else")
    asyncio.run(guests.admits(OLD, PATIENCE))
    error = refused(guests, NEW)
    assert error.reason is Reason.NOT_ADMITTED
    assert error.words.endswith("the coordinator is lost")


@pytest.mark.parametrize(
    ("news", "reason"),
    [
        (lambda guests: guests.add([WorkerInfo("w", 1, 5)]), None),
        (lambda guests: guests.close("no news"), Reason.NOT_ADMITTED),
    ],
    ids=["it comes", "none will"],
)
def test_news_ends_the_wait(news: Callable[[GuestList], None], reason: Reason | None) -> None:
    async def wait() -> RefusedError | None:
        guests = GuestList()
        guests.add([NEW])
        waiting = asyncio.ensure_future(guests.admits(OLD, PATIENCE))
        await settled()
        assert not waiting.done()
        guests.add([WorkerInfo("another", 2, 9)])  # no news of this one
        await settled()
        assert not waiting.done()
        if reason is not None:
            guests.remove(NEW)
        await asyncio.to_thread(news, guests)
        try:
            await waiting
        except RefusedError as error:
            return error
        finally:
            assert not guests._waiting
        return None

    error = asyncio.run(wait())
    assert (None if error is None else error.reason) is reason


def test_they_come_in_as_they_came() -> None:
    """Of two streams of one peer the later one is the one that it still has."""

    async def wait() -> list[int]:
        guests, came = GuestList(), list[int]()

        async def come(number: int) -> None:
            await guests.admits(NEW, PATIENCE)
            came.append(number)

        waiting = [asyncio.ensure_future(come(number)) for number in range(20)]
        await settled()
        guests.add([NEW])
        await asyncio.gather(*waiting)
        return came

    assert asyncio.run(wait()) == list(range(20))


# -- at the door -------------------------------------------------------------------------------------


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> list[WorkerInfo]:
    """The peers that wait to be let in, at whatever list."""
    waiting: list[WorkerInfo] = []
    admits = GuestList.admits

    async def noting(guests: GuestList, peer: WorkerInfo, seconds: float) -> None:
        waiting.append(peer)
        try:
            await admits(guests, peer, seconds)
        finally:
            waiting.remove(peer)

    monkeypatch.setattr(GuestList, "admits", noting)
    return waiting


def somebody_waits(floor: Floor, door: list[WorkerInfo]) -> tuple[GuestList, Worker, Worker]:
    """Has a worker dial one that has not heard of it; returns the list, the dialler and the other."""
    guests = GuestList()
    bob = floor.worker("bob", guests=guests, prove_within=PATIENCE)
    alice = floor.worker("alice", prove_within=PATIENCE).knows(bob)
    alice.post(bob, 1)
    wait_until("somebody at the door", lambda: bool(door))
    return guests, alice, bob


def test_the_dial_is_faster_than_the_news(
    floor: Floor, log: AuditLog, door: list[WorkerInfo]
) -> None:
    guests, alice, bob = somebody_waits(floor, door)
    assert not bob.recorder.envelopes
    guests.add([alice.info])
    bob.recorder.wait_envelopes(1)
    assert not log.found(CONNECTION_REFUSED)


@over_one_transport
def test_news_that_is_later_than_the_bound(floor: Floor, log: AuditLog) -> None:
    """Who is told to come again hears that the peer lives: nobody is lost by that."""
    guests, clock = GuestList(), ManualClock()
    bob = floor.worker("bob", guests=guests, prove_within=0.05)
    alice = floor.worker("alice", clock=clock, lost_after=BOUND).knows(bob)
    alice.post(bob, 1)
    told = 0
    for _ in range(8):  # more than three times the bound, in all
        told = len(log.wait(DIAL_REFUSED, told + 1, worker="alice", reason="UNANNOUNCED"))
        let_pass(clock, 0.4 * BOUND, alice)
    assert not alice.recorder.lost
    (first, *_) = log.found(CONNECTION_REFUSED, worker="bob")
    assert (first["reason"], first["peer"], first["incarnation"]) == ("UNANNOUNCED", "alice", 1)
    guests.add([alice.info])
    bob.recorder.wait_envelopes(1)


@pytest.mark.long
def test_a_peer_to_which_the_news_never_comes_is_lost_in_the_end(
    floor: Floor, log: AuditLog
) -> None:
    clock = ManualClock()
    bob = floor.worker("bob", guests=GuestList(), prove_within=0.05)
    alice = floor.worker("alice", clock=clock, lost_after=BOUND).knows(bob)
    alice.post(bob, 1)

    def told() -> int:
        return len(log.found(DIAL_REFUSED, worker="alice", reason="UNANNOUNCED"))

    bounds, before = 0.0, 0

    def news() -> bool:
        return bool(alice.recorder.lost) or told() > before

    while not alice.recorder.lost:
        assert bounds < LONGEST_UNANNOUNCED + 3
        wait_until("an answer, or the loss", news)
        before = told()
        let_pass(clock, 0.4 * BOUND, alice)
        bounds += 0.4
    assert bounds > LONGEST_UNANNOUNCED


def test_news_that_will_not_come(floor: Floor, door: list[WorkerInfo]) -> None:
    guests, alice, _ = somebody_waits(floor, door)
    guests.close("its coordinator is lost")
    error = alice.recorder.wait_lost()
    assert not error.fenced
    assert "no member of this job here: its coordinator is lost" in error.reason


def test_who_was_given_up_is_told_so_at_once(floor: Floor, door: list[WorkerInfo]) -> None:
    guests = GuestList()
    bob = floor.worker("bob", guests=guests, prove_within=PATIENCE)
    alice = floor.worker("alice").knows(bob)
    bob.exchange.fence(alice.info, "the coordinator says so")
    alice.post(bob, 1)
    assert alice.recorder.wait_lost().fenced
    assert not door


def test_a_successor_on_whom_nothing_is_known_takes_no_place(floor: Floor, log: AuditLog) -> None:
    """It holds the token, and says a living name: the living one is served on."""
    guests = GuestList()
    bob = floor.worker("bob", guests=guests, prove_within=0.05)
    alice = floor.worker("alice").knows(bob)
    guests.add([alice.info])
    alice.send(bob, 1)
    taker: Worker = floor.worker("alice", incarnation=2).knows(bob)
    taker.post(bob, 7)
    log.wait(CONNECTION_REFUSED, worker="bob", incarnation=2, reason="UNANNOUNCED")
    alice.post(bob, 2)
    assert [each.call for each in bob.recorder.wait_envelopes(2)] == [1, 2]
    assert not alice.recorder.lost


def test_a_worker_that_closes_keeps_nobody_waiting(floor: Floor, door: list[WorkerInfo]) -> None:
    _, alice, bob = somebody_waits(floor, door)
    bob.exchange.close(SECONDS)
    alice.recorder.wait_lost()
    assert not door
