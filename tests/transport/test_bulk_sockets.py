"""Lanes over sockets of their own: as other lanes, or else over gRPC; and nothing is lost between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telegrad.testing import leaks
from telegrad.transport import BulkSockets, shared_loop_thread
from telegrad.transport.channels import lanes as bulk_lanes
from telegrad.transport.channels import pace as bulk_pace
from telegrad.transport.channels import socket_lane as bulk_socket_lane
from telegrad.transport.channels.bulk_thread import copy_into
from telegrad.transport.channels.lanes import LANES
from telegrad.transport.session import ask as stream_lanes
from telegrad.transport.session.carriers import MOST_BROKEN_SOCKETS
from telegrad.transport.sockets.tcp import BulkSocket
from telegrad.wire import Envelope
from tests.transport.proxy import Proxy
from tests.transport.test_bulk_lanes import (
    MIB,
    chunks_received,
    pattern,
    test_big_ones_both_ways_at_once,
    test_both_close_with_big_ones_under_way,
    test_lanes_are_opened_when_there_is_something_big,
    test_leaving_lets_big_ones_arrive_first,
    test_the_answer_to_a_goodbye_is_heard_though_lanes_end_before_it,
    test_who_only_dialled_gets_big_ones_too,
)
from tests.transport.workers import (
    Floor,
    ManualClock,
    Worker,
    beat,
    first_of,
    floor_of,
    wait_until,
)

# What every lane does.
__all__ = [
    "test_big_ones_both_ways_at_once",
    "test_both_close_with_big_ones_under_way",
    "test_lanes_are_opened_when_there_is_something_big",
    "test_leaving_lets_big_ones_arrive_first",
    "test_the_answer_to_a_goodbye_is_heard_though_lanes_end_before_it",
    "test_who_only_dialled_gets_big_ones_too",
]

LANE = "telegrad-lane"


@pytest.fixture(params=["sockets", "sealed sockets"])
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    with floor_of(request.param) as workers:
        yield workers


@pytest.fixture
def plain() -> Iterator[Floor]:
    with floor_of("sockets") as workers:
        yield workers


@pytest.fixture
def sealed() -> Iterator[Floor]:
    with floor_of("sealed sockets") as workers:
        yield workers


def port_of(worker: Worker) -> int:
    told, *_ = worker.sockets[0].told
    return int(told.partition("=")[2])


def lanes(worker: Worker) -> int:
    return worker.exchange.statistics().lanes


def by_socket(worker: Worker, peer: Worker) -> bool:
    """Whether the lane to a peer is over a socket of its own."""
    stream = worker.connection(peer.info).stream
    assert stream is not None
    return stream.lanes.by_socket


@pytest.fixture
def between(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., tuple[Worker, Worker, Proxy]]]:
    """Makes two workers of which the first dials, its lanes through a proxy."""
    proxies: list[Proxy] = []

    def make(floor: Floor, **options: Any) -> tuple[Worker, Worker, Proxy]:
        alice, bob = floor.worker("alice", **options), floor.worker("bob", **options)
        proxy = Proxy(port_of(bob))
        proxies.append(proxy)
        where = f"bulk://127.0.0.1:{proxy.port}"
        monkeypatch.setattr(stream_lanes, "bulk_endpoint", lambda *_: where)
        alice.knows(bob)
        bob.exchange.connect(alice.info, ())
        return alice, bob, proxy

    yield make
    for proxy in proxies:
        with proxy:
            pass


Between = Callable[..., tuple[Worker, Worker, Proxy]]


def exchange_big_ones(alice: Worker, bob: Worker, n: int = 3, size: int = 3 * MIB) -> None:
    """Posts big ones both ways and checks that each comes once, as it was."""
    data = [pattern(size + call, call) for call in range(n)]
    for call in range(n):
        alice.post(bob, call, buffers=[data[call]])
        bob.post(alice, call, buffers=[data[call]])
    for worker in (alice, bob):
        got = worker.recorder.wait_envelopes(n)
        assert sorted(one.call for one in got) == list(range(n))
        assert all(bytes(one.buffers[0]) == data[one.call] for one in got)
        assert not worker.recorder.lost


# -- who uses them -----------------------------------------------------------------------------


def test_one_lane_over_a_socket_takes_the_place_of_those_over_grpc(floor: Floor) -> None:
    alice, bob = floor.pair()
    exchange_big_ones(alice, bob)
    assert lanes(alice) == lanes(bob) == 1
    assert by_socket(alice, bob)
    assert by_socket(bob, alice)


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_both_ends_have_to_want_them(plain: Floor, who: str) -> None:
    alice = plain.worker("alice", sockets=who == "alice")
    bob = plain.worker("bob", sockets=who == "bob")
    alice.knows(bob)
    alice.post(bob, 1, buffers=[bytes(MIB)])
    bob.recorder.wait_envelopes(1)
    wait_until("lanes", lambda: lanes(alice) == LANES)
    assert not by_socket(alice, bob)


def test_who_does_not_listen_dials_them(plain: Floor) -> None:
    host, client = plain.worker("host"), plain.worker("alice", listen=False)
    client.knows(host)
    client.post(host, 1)
    host.recorder.wait_envelopes(1)
    host.post(client, 2, buffers=[bytes(MIB)])
    client.recorder.wait_envelopes(1)
    assert by_socket(client, host)


def test_where_nobody_answers_lanes_go_over_grpc(
    floor: Floor, between: Between, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob, proxy = between(floor)
    with proxy:
        pass  # and it is gone
    with caplog.at_level(logging.WARNING, "telegrad"):
        exchange_big_ones(alice, bob)
        wait_until("lanes", lambda: lanes(alice) == LANES)
        wait_until("words", lambda: bool(caplog.text))
    assert "big arrays go to bob over gRPC, not bulk://" in caplog.text


def test_nothing_plain_leaves_the_machine_where_there_is_a_token(
    plain: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkSocket, "is_loopback", False)
    alice, bob = plain.pair()
    exchange_big_ones(alice, bob)
    assert lanes(alice) == LANES
    assert not by_socket(alice, bob)


def test_a_taken_port_is_named() -> None:
    with floor_of("grpc") as floor:
        taken = Proxy(0)
        with (
            taken,
            pytest.raises(OSError, match=f"{taken.port} .*name a free one in RpcOptions.bulk"),
        ):
            loop = shared_loop_thread().acquire()
            try:
                loop.run(BulkSockets(taken.port, lambda: "127.0.0.1").listen(_nobody), 5.0)
            finally:
                loop.release()
        assert floor.kind == "grpc"


async def _nobody(_: object) -> None:
    raise AssertionError("somebody came")


# -- what breaks -------------------------------------------------------------------------------

HANDSHAKE = 600  # bytes both ways, about


@pytest.mark.parametrize(
    "cuts",
    [[0], [100], [HANDSHAKE], [MIB + 1000], [3 * MIB + 500_000] * 2, [MIB, 5 * MIB, 2 * MIB]],
    ids=str,
)
def test_what_breaks_in_the_middle_is_replaced(
    floor: Floor, between: Between, cuts: list[int]
) -> None:
    alice, bob, proxy = between(floor)
    proxy.cuts = list(cuts)
    exchange_big_ones(alice, bob)
    assert not proxy.cuts


@pytest.mark.parametrize("seed", first_of(3))
def test_they_break_again_and_again(floor: Floor, between: Between, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alice, bob, proxy = between(floor)
    n = 8
    data = [pattern(int(rng.integers(MIB, 4 * MIB)), call) for call in range(n)]
    for call in range(n):
        proxy.cuts = [int(rng.integers(MIB, 4 * MIB))]
        alice.post(bob, call, buffers=[data[call]])
        bob.recorder.wait_envelopes(call + 1)
    got = bob.recorder.wait_envelopes(n)
    assert [one.call for one in got] == list(range(n))
    assert all(bytes(one.buffers[0]) == data[one.call] for one in got)
    wait_until("streams", lambda: alice.exchange.statistics().connections > 1)


def test_after_some_that_broke_lanes_go_over_grpc(floor: Floor, between: Between) -> None:
    """Something in between lets handshakes pass and breaks what follows."""
    alice, bob, proxy = between(floor)
    proxy.cuts = [5000] * 100
    exchange_big_ones(alice, bob, n=1)
    assert MOST_BROKEN_SOCKETS <= proxy.connections <= 2 * MOST_BROKEN_SOCKETS  # either may notice
    assert not by_socket(alice, bob)


@pytest.mark.parametrize("hold_after", [0, 3 * MIB], ids=["handshake", "chunks"])
def test_lanes_that_stand_still_are_replaced_by_those_over_grpc(
    plain: Floor, between: Between, hold_after: int
) -> None:
    clock = ManualClock()
    alice, bob, proxy = between(plain, clock=clock, lost_after=10.0, prove_within=1000.0)
    proxy.hold_after = hold_after
    data = pattern(24 * MIB)  # more than the system keeps for a socket
    alice.post(bob, 1, buffers=[data])
    wait_until(
        "chunks", lambda: proxy.connections == 1 and chunks_received(bob) >= (hold_after > 0)
    )

    def replaced() -> bool:
        return alice.exchange.statistics().connections > 1

    while not replaced():
        beat(clock, 10.0, alice, bob, until=replaced)
    (got,) = bob.recorder.wait_envelopes(1)
    assert bytes(got.buffers[0]) == data
    assert proxy.connections == 1
    assert not alice.recorder.lost
    assert not bob.recorder.lost


def test_what_was_altered_on_the_way_is_never_handed_over(sealed: Floor, between: Between) -> None:
    alice, bob, proxy = between(sealed)
    proxy.alter_at = MIB
    exchange_big_ones(alice, bob)
    assert MOST_BROKEN_SOCKETS <= proxy.connections <= 2 * MOST_BROKEN_SOCKETS  # either may notice
    assert not by_socket(alice, bob)


def test_sealed_bytes_tell_nothing(floor: Floor, between: Between) -> None:
    alice, bob, proxy = between(floor)
    data = pattern(2 * MIB)
    alice.post(bob, 1, buffers=[data])
    bob.recorder.wait_envelopes(1)
    assert len(proxy.seen) > len(data)
    assert (data[5000:5100] in proxy.seen) is (floor.kind == "sockets")


@pytest.mark.parametrize("end", ["kill", "fence"])
def test_a_loss_in_the_middle_ends_it(plain: Floor, between: Between, end: str) -> None:
    alice, bob, proxy = between(plain)
    proxy.hold_after = 3 * MIB
    alice.post(bob, 1, buffers=[bytes(24 * MIB)])
    wait_until("chunks", lambda: chunks_received(bob) >= 1)
    if end == "kill":
        plain.kill(bob)
    else:
        bob.exchange.fence(alice.info, "enough")
    assert alice.recorder.wait_lost().worker == "bob"
    assert bob.recorder.calls() == []
    wait_until("threads", lambda: all(each.name != LANE for each in threading.enumerate()))


# -- what ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sockets", "sealed sockets"])
def test_nothing_is_left_open(kind: str) -> None:
    def use() -> None:
        with floor_of(kind) as floor:
            alice, bob = floor.pair()
            alice.post(bob, 1, buffers=[bytes(24 * MIB)])
            bob.post(alice, 1, buffers=[bytes(8 * MIB)])
            alice.recorder.wait_envelopes(1)
            alice.exchange.close(0.01)  # in the middle, perhaps

    use()
    with leaks.no_leaked_descriptors(), leaks.no_leaked_threads():
        use()


# -- who touches bytes -------------------------------------------------------------------------


def test_plain_bytes_are_copied_by_the_system_alone(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of what was posted, into the array they end in; sealed ones are once more, in its thread."""
    copies: list[str] = []

    def noting(place: memoryview, data: bytes) -> None:
        copies.append(threading.current_thread().name)
        copy_into(place, data)

    monkeypatch.setattr(bulk_pace, "FIRST_BYTES", MIB)
    monkeypatch.setattr(bulk_socket_lane, "copy_into", noting)
    monkeypatch.setattr(bulk_lanes, "make_chunk", None)
    alice, bob = floor.pair()
    bob.recorder.react = lambda peer, got: bob.exchange.post(
        peer, Envelope("test.reply", got.call, reply=True, buffers=got.buffers)
    )
    data = pattern(3 * MIB)
    alice.post(bob, 1, buffers=[data])
    (echo,) = alice.recorder.wait_envelopes(1)
    assert bytes(echo.buffers[0]) == data
    assert copies == ([LANE] * 6 if floor.kind == "sealed sockets" else [])


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
    calls_of_loop(alice, bob, MIB, 0)  # brings the lane up
    assert calls_of_loop(alice, bob, 64 * MIB, 1) <= 4 + calls_of_loop(alice, bob, MIB, 2)
