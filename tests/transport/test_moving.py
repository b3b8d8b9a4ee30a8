"""Streams that move from gRPC to sockets: as all others, and nothing is lost on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telegrad.testing import leaks
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason
from telegrad.transport.security.seal import SealedFrames, make_seal, moved_secret
from telegrad.transport.security.tags import BadTagError
from telegrad.transport.session import ask as stream_lanes
from telegrad.transport.session.carriers import MOST_BROKEN_SOCKETS
from telegrad.transport.sockets.tcp import BulkSocket
from tests.transport.proxy import Proxy
from tests.transport.test_bulk_lanes import (
    MIB,
    pattern,
    test_big_ones_both_ways_at_once,
    test_both_close_with_big_ones_under_way,
    test_leaving_lets_big_ones_arrive_first,
)
from tests.transport.test_bulk_socket_strangers import SocketPeer
from tests.transport.test_bulk_sockets import port_of
from tests.transport.test_bulk_strangers import on_loop
from tests.transport.test_promise import (
    test_a_conversation,
    test_a_fenced_peer_stays_out,
    test_a_goodbye_follows_what_was_posted_and_is_a_loss_with_its_reason,
    test_a_loss_lets_go_of_what_was_posted,
    test_a_refused_redial_is_a_loss_at_once,
    test_all_leave_at_once,
    test_an_envelope_arrives_whole,
    test_both_dial_at_once,
    test_both_directions_at_once_from_many_threads,
    test_idle_peers_keep_each_other_alive,
    test_introduce_while_the_other_dials,
    test_leaving_one_peer_keeps_the_others,
    test_small_ones_pass_a_big_one,
)
from tests.transport.workers import TOKEN, Floor, Worker, first_of, floor_of, wait_until

# What every transport promises.
__all__ = [
    "test_a_conversation",
    "test_a_fenced_peer_stays_out",
    "test_a_goodbye_follows_what_was_posted_and_is_a_loss_with_its_reason",
    "test_a_loss_lets_go_of_what_was_posted",
    "test_a_refused_redial_is_a_loss_at_once",
    "test_all_leave_at_once",
    "test_an_envelope_arrives_whole",
    "test_big_ones_both_ways_at_once",
    "test_both_close_with_big_ones_under_way",
    "test_both_dial_at_once",
    "test_both_directions_at_once_from_many_threads",
    "test_idle_peers_keep_each_other_alive",
    "test_introduce_while_the_other_dials",
    "test_leaving_lets_big_ones_arrive_first",
    "test_leaving_one_peer_keeps_the_others",
    "test_small_ones_pass_a_big_one",
]

KINDS = ["moved sockets", "sealed moved sockets"]
Between = Callable[..., tuple[Worker, Worker, Proxy]]


@pytest.fixture(params=KINDS)
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    with floor_of(request.param) as workers:
        yield workers


@pytest.fixture
def plain() -> Iterator[Floor]:
    with floor_of("moved sockets") as workers:
        yield workers


@pytest.fixture
def sealed() -> Iterator[Floor]:
    with floor_of("sealed moved sockets") as workers:
        yield workers


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """Makes two workers of which the first dials, and moves, through a proxy."""
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


def has_moved(worker: Worker, peer: Worker) -> bool:
    stream = worker.connection(peer.info).stream
    return stream is not None and isinstance(stream.carrier, BulkSocket)


def talk(alice: Worker, bob: Worker, calls: range) -> None:
    """Posts both ways and checks that each comes once, in its order."""
    for call in calls:
        alice.post(bob, call, buffers=[pattern(call, call)])
        bob.post(alice, call, buffers=[pattern(call, call)])
    for worker in (alice, bob):
        got = worker.recorder.wait_envelopes(calls.stop)
        assert [one.call for one in got] == list(range(calls.stop))
        assert all(bytes(one.buffers[0]) == pattern(one.call, one.call) for one in got)
        assert not worker.recorder.lost


# -- who moves ---------------------------------------------------------------------------------


def test_a_stream_moves_and_goes_on(floor: Floor) -> None:
    alice, bob = floor.pair()
    talk(alice, bob, range(5))
    wait_until("moved", lambda: has_moved(alice, bob) and has_moved(bob, alice))
    talk(alice, bob, range(5, 300))
    assert alice.exchange.statistics().connections == 1
    for one, other in ((alice, bob), (bob, alice)):
        one.post(other, 300, buffers=[pattern(3 * MIB)])
        got = other.recorder.wait_envelopes(301)
        assert bytes(got[-1].buffers[0]) == pattern(3 * MIB)
    assert alice.exchange.statistics().lanes == 1
    assert has_moved(alice, bob)


def test_one_that_was_introduced_moves(floor: Floor) -> None:
    host, client = floor.worker("host"), floor.worker("alice", listen=False)
    client.exchange.introduce(host.endpoints[0], timeout=20.0)
    wait_until("moved", lambda: has_moved(client, host))
    client.post(host, 0)
    host.recorder.wait_envelopes(1)
    host.post(client, 0)
    client.recorder.wait_envelopes(1)


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_both_ends_have_to_want_it(plain: Floor, who: str) -> None:
    alice = plain.worker("alice", sockets=who == "alice")
    bob = plain.worker("bob", sockets=who == "bob")
    alice.knows(bob)
    bob.exchange.connect(alice.info, ())
    talk(alice, bob, range(5))
    assert not has_moved(alice, bob)


def test_where_nobody_answers_it_stays(
    floor: Floor, between: Between, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob, proxy = between(floor)
    with proxy:
        pass  # and it is gone
    with caplog.at_level(logging.WARNING, "telegrad"):
        talk(alice, bob, range(50))
        wait_until("words", lambda: "calls go to bob over gRPC, not bulk://" in caplog.text)
    assert not has_moved(alice, bob)
    assert alice.exchange.statistics().connections == 1


def test_nothing_plain_leaves_the_machine_where_there_is_a_token(
    plain: Floor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(BulkSocket, "is_loopback", False)
    with caplog.at_level(logging.WARNING, "telegrad"):
        alice, bob = plain.pair()
        talk(alice, bob, range(5))
        wait_until("words", lambda: "the stream is not encrypted" in caplog.text)
    assert not has_moved(alice, bob)


# -- what breaks -------------------------------------------------------------------------------


HELLOS = 400  # bytes both ways, about


@pytest.mark.parametrize(
    "cut",
    [
        0,
        300,
        600,
        5000,
        *(pytest.param(cut, marks=pytest.mark.long) for cut in (100, 450, 900, 60_000)),
    ],
)
def test_what_breaks_in_the_middle_goes_on(floor: Floor, between: Between, cut: int) -> None:
    alice, bob, proxy = between(floor)
    proxy.cuts = [cut]
    talk(alice, bob, range(100))
    call = 100
    while cut > HELLOS and proxy.connections < 2:  # else it stays where it was
        talk(alice, bob, range(call, call + 50))
        call += 50
    if cut > HELLOS:
        wait_until("moved again", lambda: has_moved(alice, bob) and has_moved(bob, alice))
    talk(alice, bob, range(call, call + 50))


@pytest.mark.parametrize("seed", first_of(3))
def test_it_breaks_again_and_again(floor: Floor, between: Between, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alice, bob, proxy = between(floor)
    for call in range(0, 200, 50):
        proxy.cuts = [int(rng.integers(0, 20_000))]
        talk(alice, bob, range(call, call + 50))


def test_after_some_that_broke_it_stays(
    floor: Floor, between: Between, caplog: pytest.LogCaptureFixture
) -> None:
    """Something in between lets handshakes pass and breaks what follows."""
    alice, bob, proxy = between(floor)
    proxy.cuts = [2000] * 100
    call = 0
    while "too many sockets to bob broke" not in caplog.text:
        talk(alice, bob, range(call, call + 50))
        call += 50
    tries = proxy.connections
    assert tries >= MOST_BROKEN_SOCKETS
    talk(alice, bob, range(call, call + 200))
    assert proxy.connections == tries
    assert not has_moved(alice, bob)


@pytest.mark.parametrize("byte", [700, 2000])
def test_what_was_altered_on_the_way_is_never_handed_over(
    floor: Floor, between: Between, byte: int
) -> None:
    alice, bob, proxy = between(floor)
    proxy.alter_at = byte
    call = 0
    while proxy.connections < 2:  # what was altered has ended the first
        talk(alice, bob, range(call, call + 50))
        call += 50


def test_sealed_frames_tell_nothing(floor: Floor, between: Between) -> None:
    alice, bob, proxy = between(floor)
    talk(alice, bob, range(5))
    wait_until("moved", lambda: has_moved(alice, bob) and has_moved(bob, alice))
    alice.post(bob, 5, buffers=[b"a secret of nobody else's"])
    bob.recorder.wait_envelopes(6)
    told = b"a secret of nobody" in proxy.seen
    assert told == (floor.kind == "moved sockets")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_open(kind: str) -> None:
    with leaks.no_leaked_descriptors(), floor_of(kind) as floor:
        alice, bob = floor.pair()
        talk(alice, bob, range(20))
        wait_until("moved", lambda: has_moved(alice, bob))
        floor.kill(bob)
        alice.recorder.wait_lost()


# -- who may -----------------------------------------------------------------------------------


def test_who_does_not_know_the_stream_moves_none(plain: Floor) -> None:
    host = plain.worker("host")
    peer = SocketPeer(plain, host)

    async def try_to() -> None:
        for stream, token in ((bytes(32), TOKEN), (b"x" * 32, b"another token, long enough")):
            carrier = await peer.socket()
            shake = DialHandshake(Identity("job", peer.info), token, lane_of=stream, moves=True)
            await carrier.send(shake.hello())
            shake.takes_answer(await carrier.receive())
            await carrier.send(shake.prove(0, resumes=True))
            said = await carrier.receive()
            expected = Reason.UNKNOWN_STREAM if token == TOKEN else Reason.AUTHENTICATION
            assert said[:1] == b"R"
            with pytest.raises(ConnectionError) as refused:
                shake.takes_welcome(said)
            assert getattr(refused.value, "reason", None) is expected
        await peer.close()

    on_loop(try_to)


def test_a_sealed_frame_opens_in_its_place_alone() -> None:
    secret = moved_secret(b"s" * 32, b"both hellos")
    ends = [make_seal(secret, b"transcript", dialled=dialled) for dialled in (True, False)]
    assert ends[0] is not None
    assert ends[1] is not None
    here, there = SealedFrames(ends[0]), SealedFrames(ends[1])
    first, second = here.seal(b"first"), here.seal(b"second")
    assert b"first" not in first
    for message in (first[:-1] + b"T", second, b"", b"short", there.seal(b"first")):
        with pytest.raises(BadTagError):
            there.open(message)
    assert there.open(first) == b"first"
    with pytest.raises(BadTagError):
        there.open(first)
    assert there.open(second) == b"second"


def test_a_plain_stream_has_no_secret() -> None:
    assert moved_secret(b"", b"both hellos") == b""
    assert moved_secret(b"s" * 32, b"one") != moved_secret(b"s" * 32, b"two")
