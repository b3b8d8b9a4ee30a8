"""Loops that run late, backlogs and different bounds, between whole exchanges on a manual clock.

Time passes in steps of a tick; in between the loop runs until nothing moves any more, so what is
lost is lost by the clock alone, however loaded the machine is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad.transport import Transport, shared_loop_thread
from tests.transport.workers import (
    Floor,
    ManualClock,
    SlowReader,
    Worker,
    floor_of,
    let_pass,
)


@pytest.fixture
def floor() -> Iterator[Floor]:
    with floor_of("inproc") as workers:
        yield workers


def lost(*workers: Worker) -> list[str]:
    return [str(error) for worker in workers for _, error in worker.recorder.lost]


def met(
    floor: Floor,
    clock: ManualClock,
    first: float,
    second: float,
    transport: Transport | None = None,
) -> tuple[Worker, Worker]:
    """Returns two workers with a session and with these bounds; the other one may be slow."""
    alice = floor.worker("alice", clock=clock, lost_after=first)
    bob = floor.worker("bob", clock=clock, lost_after=second, transport=transport)
    alice.knows(bob)
    alice.send(bob, 1)
    return alice, bob


def test_who_beats_seldom_answers_who_asks_often(floor: Floor) -> None:
    """With bounds of 10 s and 1000 s the one asks every 2 s, the other every 200 s."""
    clock = ManualClock()
    alice, bob = met(floor, clock, 10.0, 1000.0)
    let_pass(clock, 100.0, alice, bob)
    assert lost(alice, bob) == []


def test_a_question_behind_a_long_backlog(floor: Floor) -> None:
    """Its answer comes after three bounds; that the backlog is worked through is seen before."""
    clock, slow = ManualClock(), SlowReader(floor.transport())
    alice, bob = met(floor, clock, 10.0, 40.0, slow)
    slow.is_slow = True
    for call in range(2, 18):  # as many as wait in a carrier of this transport
        alice.post(bob, call)
        let_pass(clock, 0.0, alice)
    for _ in range(16):
        let_pass(clock, 2.0, alice, bob)
        assert lost(alice, bob) == []
        shared_loop_thread().call_soon(slow.permits.release)
    assert len(bob.recorder.wait_envelopes(16)) < 18


def test_a_peer_that_said_so_may_be_silent_for_longer(floor: Floor) -> None:
    """As a worker tells the coordinator, which another program may have started."""
    clock, slow = ManualClock(), SlowReader(floor.transport())
    alice, bob = met(floor, clock, 10.0, 100.0, slow)
    alice.exchange.spare(bob.info, 100.0)
    slow.is_slow = True
    let_pass(clock, 99.0, alice, bob)
    assert lost(alice) == []
    let_pass(clock, 4.0, alice, bob)
    assert "silent for" in alice.recorder.wait_lost().reason
