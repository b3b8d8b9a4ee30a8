"""Lanes over TCP sockets, beside a stream that has moved: as other lanes, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from telegrad.testing import leaks
from telegrad.transport import shared_loop_thread
from telegrad.transport.channels import lanes as bulk_lanes
from telegrad.transport.channels import pace as bulk_pace
from telegrad.transport.session import dial
from telegrad.transport.session.carriers import MOST_BROKEN_SOCKETS
from telegrad.wire import Envelope
from tests.transport.channels.test_lanes import (  # noqa: F401
    MIB,
    chunks_received,
    exchange_big_ones,
    test_big_ones_both_ways_at_once,
    test_both_close_with_big_ones_under_way,
    test_lanes_are_opened_when_there_is_something_big,
    test_the_answer_to_a_goodbye_is_heard_though_lanes_end_before_it,
)
from tests.transport.sockets.test_tcp import (
    KINDS,
    Between,
    between,
    talk,
)
from tests.transport.workers import (
    SECONDS,
    Authority,
    Floor,
    ManualClock,
    Worker,
    beat,
    floor_of,
    has_moved,
    pattern,
    wait_until,
    wait_until_moved,
)

__all__ = ["between"]  # a fixture

LANE = "telegrad-lane"


@pytest.fixture(params=["tcp", "self-signed tcp", pytest.param(KINDS[2], marks=pytest.mark.long)])
def floor(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Floor]:
    with floor_of(request.param, authority) as workers:
        yield workers


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane is dialled over gRPC while a stream is about to move, however slow the machine is."""
    monkeypatch.setattr(dial, "HELD_SECONDS", SECONDS)


# -- what breaks -------------------------------------------------------------------------------

# Bytes both ways after which a connection through the proxy is cut. Each stream that moves is one,
# and its lane the next one.
STREAM = None


@pytest.mark.long
@pytest.mark.parametrize(
    "cuts",
    [
        [STREAM, 0],
        [STREAM, 100],
        [STREAM, 600],
        [STREAM, 2500],
        [STREAM, MIB + 1000],
        [STREAM, 3 * MIB + 500_000] * 2,
        [STREAM, MIB, STREAM, 5 * MIB, STREAM, 2 * MIB],
    ],
    ids=str,
)
def test_what_breaks_in_the_middle_is_replaced(
    floor: Floor, between: Between, cuts: list[int | None]
) -> None:
    alice, bob, proxy = between(floor)
    proxy.cuts = list(cuts)
    exchange_big_ones(alice, bob)
    assert not proxy.cuts


@pytest.mark.few(1)
@pytest.mark.parametrize("hold_after", [0, 3 * MIB], ids=["handshake", "chunks"])
def test_lanes_that_stand_still_are_replaced_by_those_over_grpc(
    floor: Floor, between: Between, hold_after: int
) -> None:
    clock = ManualClock()
    alice, bob, proxy = between(floor, clock=clock, lost_after=10.0, prove_within=1000.0)
    talk(alice, bob, range(5))
    wait_until_moved(alice, bob)
    proxy.hold_after, proxy.holds_from = hold_after, 2  # the stream goes on
    data = pattern(24 * MIB)  # more than the system keeps for a socket
    alice.post(bob, 5, buffers=[data])
    wait_until(
        "chunks", lambda: proxy.connections == 2 and chunks_received(bob) >= (hold_after > 0)
    )

    def replaced() -> bool:
        return alice.exchange.statistics().connections > 1

    while not replaced():
        beat(clock, 10.0, alice, bob, until=replaced)
    got = bob.recorder.wait_envelopes(6)[-1]
    assert bytes(got.buffers[0]) == data
    assert proxy.connections == 2
    assert not alice.recorder.lost
    assert not bob.recorder.lost


@pytest.mark.long
def test_what_was_altered_on_the_way_is_never_handed_over(
    encrypted: Floor, between: Between
) -> None:
    alice, bob, proxy = between(encrypted)
    proxy.alter_at = MIB
    exchange_big_ones(alice, bob)
    assert MOST_BROKEN_SOCKETS <= proxy.connections <= 4 * MOST_BROKEN_SOCKETS
    assert not has_moved(alice, bob)


@pytest.mark.parametrize("end", ["kill", "fence"])
def test_a_loss_in_the_middle_ends_it(floor: Floor, between: Between, end: str) -> None:
    alice, bob, proxy = between(floor)
    proxy.hold_after = 3 * MIB  # of the lane: the stream moves less
    alice.post(bob, 1, buffers=[bytes(24 * MIB)])
    wait_until("chunks", lambda: chunks_received(bob) >= 1)
    if end == "kill":
        floor.kill(bob)
    else:
        bob.exchange.fence(alice.info, "enough")
    assert alice.recorder.wait_lost().worker == "bob"
    assert bob.recorder.calls() == []
    wait_until("threads", lambda: all(each.name != LANE for each in threading.enumerate()))


# -- what ends ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tcp", "self-signed tcp"])
def test_nothing_is_left_open(kind: str) -> None:
    def use() -> None:
        with floor_of(kind) as floor:
            alice, bob = floor.pair()
            alice.post(bob, 1, buffers=[bytes(24 * MIB)])
            bob.send(alice, 1, buffers=[bytes(8 * MIB)])
            alice.exchange.close(0.01)  # in the middle, perhaps

    use()
    with leaks.no_leaked_descriptors(), leaks.no_leaked_threads():
        use()


# -- who touches bytes -------------------------------------------------------------------------


def test_bytes_are_copied_by_the_system_alone(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of what was posted, into the array in which they end, and by OpenSSL under TLS."""
    monkeypatch.setattr(bulk_pace, "FIRST_BYTES", MIB)
    monkeypatch.setattr(bulk_lanes, "CarrierChunks", None)
    alice, bob = floor.pair()
    bob.recorder.react = lambda peer, got: bob.exchange.post(
        peer, Envelope("test.reply", got.call, reply=True, buffers=got.buffers)
    )
    data = pattern(3 * MIB)
    alice.post(bob, 1, buffers=[data])
    (echo,) = alice.recorder.wait_envelopes(1)
    assert bytes(echo.buffers[0]) == data


def test_lanes_of_threads_do_not_wake_the_loop_for_each_chunk(
    plain: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty-four chunks each way take as few calls of the loop as one."""

    def calls_of_loop(alice: Worker, bob: Worker, size: int, call: int) -> int:
        done = threading.Event()
        counted = 0
        loop = shared_loop_thread()
        thread_safe = loop.call_soon

        def counting(*args: Any) -> None:
            nonlocal counted
            counted += 1
            thread_safe(*args)

        alice.recorder.react = lambda *_: done.set()
        with monkeypatch.context() as patch:
            patch.setattr(type(loop), "call_soon", lambda _, *args: counting(*args))
            alice.post(bob, call, buffers=[bytes(size)])
            assert done.wait(20.0)
        return counted

    alice, bob = plain.pair(clock=ManualClock())  # without heartbeats, however long it takes
    bob.recorder.react = lambda peer, got: bob.exchange.post(
        peer, Envelope("test.reply", got.call, reply=True, buffers=got.buffers)
    )
    alice.post(bob, 0)
    wait_until_moved(alice, bob)
    calls_of_loop(alice, bob, MIB, 0)  # brings the lane up
    assert calls_of_loop(alice, bob, 64 * MIB, 1) <= 4 + calls_of_loop(alice, bob, MIB, 2)
