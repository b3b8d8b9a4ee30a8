"""The promise of a session, stated once and kept by every transport."""

from __future__ import annotations

import gc
import random
import weakref
from functools import partial

import numpy as np
import pytest

from telegrad.errors import (
    AuthenticationError,
    RendezvousError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.transport import (
    GuestList,
    shared_loop_thread,
)
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope
from tests.transport.taps import Tap, tapped_pair
from tests.transport.workers import (
    SECONDS,
    Floor,
    ManualClock,
    Slow,
    Worker,
    at_once,
    beat,
    first_of,
    let_pass,
    pattern,
    run_on,
    wait_until,
)

KIB, MIB = 2**10, 2**20
SIZES = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 5 * MIB]


def test_an_envelope_arrives_whole(floor: Floor) -> None:
    alice, bob = floor.pair()
    sent = Envelope(
        "test.whole", 7, True, 12.5, 3, b"document", b"externals", {"a": b"1", "b": b""}, [b"x"]
    )
    alice.exchange.post(bob.info, sent)
    (got,) = bob.recorder.wait_envelopes(1)
    assert (got.kind, got.call, got.reply, got.depth) == ("test.whole", 7, True, 3)
    assert (got.document, got.externals, got.headers) == (
        sent.document,
        sent.externals,
        sent.headers,
    )
    assert 0 < got.time_left <= 12.5
    assert got.number == 1
    assert bob.recorder.envelopes[0][0] == alice.info


@pytest.mark.few(5)
@pytest.mark.parametrize("size", SIZES)
def test_buffers_of_every_size(floor: Floor, size: int) -> None:
    alice, bob = floor.pair()
    data = pattern(size)
    got = alice.send(bob, 1, buffers=[data, b"small", memoryview(bytearray(data))])
    assert [bytes(buffer) for buffer in got.buffers] == [data, b"small", data]
    for buffer in got.buffers:
        view = memoryview(buffer)
        assert not view.readonly


def test_a_big_document_and_big_externals(floor: Floor) -> None:
    alice, bob = floor.pair()
    document, externals = pattern(6 * MIB), pattern(5 * MIB, 1)
    got = alice.send(bob, 1, document=document, externals=externals)
    assert (got.document, got.externals) == (document, externals)


def test_headers_that_fit_no_write_are_refused_at_once(floor: Floor) -> None:
    alice, bob = floor.pair()
    with pytest.raises(TypeError, match="headers of an envelope"):
        alice.post(bob, 1, headers={"a": b"x" * (3 * MIB)})
    alice.post(bob, 2)
    assert bob.recorder.wait_envelopes(1)[0].call == 2


def test_small_ones_pass_a_big_one(floor: Floor) -> None:
    alice, bob = floor.worker("alice"), floor.worker("bob")
    alice.exchange.connect(bob.info, ())  # may post; nothing leaves before all are there
    alice.post(bob, 0, buffers=[pattern(8 * MIB)])
    for call in range(1, 51):
        alice.post(bob, call)
    alice.knows(bob)
    bob.recorder.wait_envelopes(51)
    assert bob.recorder.calls()[-1] == 0
    assert sorted(bob.recorder.calls()) == list(range(51))


def test_both_directions_at_once_from_many_threads(floor: Floor) -> None:
    alice, bob = floor.pair()
    each, threads = 500, 4

    def post(sender: Worker, receiver: Worker, first: int) -> None:
        for call in range(first, first + each):
            sender.post(receiver, call)

    pairs = (alice, bob), (bob, alice)
    at_once(*(partial(post, *pair, k * each) for pair in pairs for k in range(threads)))
    for worker in (alice, bob):
        worker.recorder.wait_envelopes(each * threads)
        assert sorted(worker.recorder.calls()) == list(range(each * threads))
    statistics = alice.exchange.statistics()
    assert statistics.envelopes_received == each * threads
    assert statistics.bytes_sent > 0


def test_a_conversation(floor: Floor) -> None:
    alice, bob = floor.pair()
    bob.recorder.react = lambda peer, got: bob.exchange.post(
        peer, Envelope("test.reply", got.call, reply=True)
    )
    for call in range(1, 101):
        alice.post(bob, call)
        assert alice.recorder.wait_envelopes(call)[-1].call == call
    assert not alice.recorder.lost


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", first_of(4))
def test_carriers_break_in_the_middle_again_and_again(floor: Floor, seed: int) -> None:
    rng = random.Random(seed)
    alice, bob, tap = tapped_pair(floor)
    sizes = {1: MIB + 1, 5: 3 * MIB, 40: 64 * KIB + 1}
    data = {call: pattern(size, call) for call, size in sizes.items()}
    n = 120
    for call in range(n):
        for purpose in {"control", "bulk"} - tap.kill.keys():  # the last break has struck
            if call % 5 == 0:
                tap.kill[purpose] = rng.randint(3, 12)
        alice.post(bob, call, buffers=[data.get(call, b"")])
        bob.post(alice, call, buffers=[data.get(call, b"")])
        if call % 10 == 9:  # let some of it go, so that the breaks fall everywhere
            alice.recorder.wait_envelopes(call - 5)
    for worker in (alice, bob):
        got = worker.recorder.wait_envelopes(n)
        assert sorted(envelope.call for envelope in got) == list(range(n))
        assert all(bytes(e.buffers[0]) == data.get(e.call, b"") for e in got)
    assert alice.exchange.statistics().connections > 1  # how many depends on what goes together
    assert not alice.recorder.lost
    assert not bob.recorder.lost


@pytest.mark.parametrize("known", ["alice", "bob"])
def test_either_side_dials_again(floor: Floor, known: str) -> None:
    """Only one side has the other's address; whichever it is, a broken carrier is replaced."""
    tap = Tap(floor.transport())
    dialler = floor.worker("bob" if known == "alice" else "alice", transport=tap)
    other = floor.worker(known)
    dialler.knows(other)
    dialler.send(other, 0)
    for call in range(1, 30):
        if call < 25:  # a later break may strike behind the last message
            tap.kill.setdefault("control", 8)
        other.post(dialler, call)
        dialler.recorder.wait_envelopes(call)
    assert dialler.recorder.calls() == list(range(1, 30))
    assert dialler.exchange.statistics().connections > 1


@pytest.mark.parametrize("round_", first_of(5))
def test_both_dial_at_once(floor: Floor, round_: int) -> None:
    alice, bob = floor.pair()
    at_once(lambda: alice.post(bob, round_), lambda: bob.post(alice, round_))
    for worker in (alice, bob):
        worker.recorder.wait_envelopes(1)
    for call in range(20):
        alice.post(bob, call)
        bob.post(alice, call)
    for worker in (alice, bob):
        worker.recorder.wait_envelopes(21)
        assert worker.exchange.statistics().connections == 1
        assert len(worker.recorder.calls()) == 21


def test_posting_to_oneself_copies(floor: Floor) -> None:
    alice = floor.worker("alice")
    buffer = bytearray(b"before")
    alice.post(alice, 1, buffers=[buffer], document=b"d")
    buffer[:] = b"after!"
    (got,) = alice.recorder.wait_envelopes(1)
    assert bytes(got.buffers[0]) == b"before"
    assert got.document == b"d"
    assert alice.exchange.statistics().connections == 0


def test_an_unknown_worker(floor: Floor) -> None:
    alice = floor.worker("alice")
    with pytest.raises(UnknownWorkerError, match="'nobody'"):
        alice.exchange.post(WorkerInfo("nobody", 3, 5), Envelope("test.message"))


# -- loss --------------------------------------------------------------------------------------


def test_a_refused_dial_is_a_loss(floor: Floor) -> None:
    alice, bob = floor.pair()
    floor.kill(bob)
    alice.post(bob, 1)
    error = alice.recorder.wait_lost()
    assert (error.worker, error.incarnation) == ("bob", 1)
    assert "nobody listens" in error.reason
    with pytest.raises(WorkerLostError, match="'bob' \\(incarnation 1\\) is lost") as first:
        alice.post(bob, 2)
    with pytest.raises(WorkerLostError) as second:
        alice.post(bob, 3)
    assert first.value is not second.value


def test_a_refused_redial_is_a_loss_at_once(floor: Floor) -> None:
    clock = ManualClock()  # stands: silence can lose nobody
    alice, bob = floor.pair(clock=clock)
    alice.send(bob, 1)
    floor.kill(bob)
    reason = alice.recorder.wait_lost().reason
    assert "nobody listens" in reason
    assert "; its last connection broke 0.0 s before (" in reason  # and why
    assert len(alice.recorder.lost) == 1


def test_another_incarnation_is_a_loss(floor: Floor) -> None:
    alice, bob = floor.pair()
    second = floor.worker("bob", incarnation=2)
    alice.exchange.connect(bob.info, second.endpoints)
    alice.post(bob, 1)
    assert "incarnation 2 answers in its place" in alice.recorder.wait_lost().reason
    assert second.recorder.calls() == []


def test_another_name_is_a_loss(floor: Floor) -> None:
    alice, bob = floor.pair()
    carol = floor.worker("carol")
    alice.exchange.connect(bob.info, carol.endpoints)
    alice.post(bob, 1)
    assert "carol listens there now" in alice.recorder.wait_lost().reason


def test_silence_is_a_loss_after_the_bound(floor: Floor) -> None:
    clock, slow = ManualClock(), Slow(floor.transport())
    bob = floor.worker("bob", clock=ManualClock(), lost_after=1e9)
    loop = shared_loop_thread()
    loop.call_soon(slow.go.set)
    alice = floor.worker("alice", transport=slow, clock=clock, lost_after=10.0).knows(bob)
    alice.send(bob, 1)
    loop.run(slow.get_stuck(), SECONDS)  # nothing that alice asks arrives any more
    let_pass(clock, 9.0, alice)
    assert not alice.recorder.lost
    while not alice.recorder.lost:  # an answer under way counts from when it is read, maybe late
        let_pass(clock, 1.0, alice)
    error = alice.recorder.wait_lost()
    assert "silent for" in error.reason
    assert 10.0 <= error.last_seen <= 13.0
    loop.call_soon(slow.go.set)
    assert slow.closed.wait(SECONDS)


def test_idle_peers_keep_each_other_alive(floor: Floor) -> None:
    clock = ManualClock()
    alice, bob = floor.pair(clock=clock, lost_after=1.25)
    alice.send(bob, 1)
    for _ in range(15):  # from beat to beat, for three bounds
        beat(clock, 0.25, alice, bob, until=lambda: False)
    assert not alice.recorder.lost
    assert not bob.recorder.lost


def test_who_cannot_be_reached_is_lost_in_the_words_of_the_last_dial(floor: Floor) -> None:
    alice = floor.worker("alice", lost_after=0.3)
    bob = WorkerInfo("bob", 1, 1)
    alice.exchange.connect(bob, ["rdma://nowhere"])
    alice.exchange.post(bob, Envelope("test.message"))
    assert "last dial: rdma://nowhere needs a transport" in alice.recorder.wait_lost().reason


def test_a_loss_lets_go_of_what_was_posted(floor: Floor) -> None:
    alice, bob = floor.pair()
    floor.kill(bob)
    buffer = np.zeros(2 * MIB, np.uint8)
    held = weakref.ref(buffer)
    alice.post(bob, 1, buffers=[buffer.data])
    del buffer
    alice.recorder.wait_lost()
    wait_until("memory", lambda: gc.collect() >= 0 and held() is None)


def test_a_goodbye_follows_what_was_posted_and_is_a_loss_with_its_reason(floor: Floor) -> None:
    alice, bob = floor.pair()
    data = pattern(3 * MIB)
    for call in range(200):
        alice.post(bob, call)
    alice.post(bob, 200, buffers=[data])
    alice.exchange.close(SECONDS, "done here")
    got = bob.recorder.wait_envelopes(201)
    assert sorted(envelope.call for envelope in got) == list(range(201))
    assert bob.recorder.wait_lost().reason == "done here"
    with pytest.raises(WorkerLostError):
        bob.post(alice, 1)
    alice.exchange.close(SECONDS)  # idempotent
    with pytest.raises(WorkerLostError):
        alice.post(bob, 1)


def test_all_leave_at_once(floor: Floor) -> None:
    workers = [floor.worker(name) for name in "abcd"]
    for worker in workers:
        worker.knows(*(peer for peer in workers if peer is not worker))
        for call, peer in enumerate(workers):
            if peer is not worker:
                worker.post(peer, call)
    for worker in workers:
        worker.recorder.wait_envelopes(3)
    at_once(*(partial(each.exchange.close, SECONDS) for each in workers), within=SECONDS / 2)


def test_leaving_one_peer_keeps_the_others(floor: Floor) -> None:
    alice, bob = floor.pair()
    carol = floor.worker("carol").knows(alice)
    alice.knows(carol)
    for peer in (bob, carol):
        alice.send(peer, 1)
    alice.exchange.leave(bob.info, "enough")
    assert bob.recorder.wait_lost().reason == "enough"
    alice.send(carol, 2)


def test_a_fenced_peer_stays_out(floor: Floor) -> None:
    alice, bob = floor.pair()
    bob.send(alice, 1)
    alice.exchange.fence(bob.info, "the coordinator gave it up")
    with pytest.raises(WorkerLostError, match="the coordinator gave it up"):
        alice.post(bob, 1)
    assert alice.recorder.wait_lost().reason == "the coordinator gave it up"
    assert "the coordinator gave it up" in bob.recorder.wait_lost().reason


# -- who belongs here --------------------------------------------------------------------------


def test_introduce(floor: Floor) -> None:
    host = floor.worker("coordinator")
    client = floor.worker("alice", listen=False)
    found = client.exchange.introduce(host.endpoints[0], timeout=SECONDS)
    assert found == host.info
    assert client.exchange.introduce(host.endpoints[0], timeout=SECONDS) == host.info
    client.send(host, 1)
    host.send(client, 2)
    assert client.exchange.statistics().connections == 1


@pytest.mark.parametrize("name", ["alice", "zoe"])
def test_introduce_while_the_other_dials(floor: Floor, name: str) -> None:
    host, client = floor.worker("host"), floor.worker(name)
    host.knows(client)
    host.post(client, 1)
    assert client.exchange.introduce(host.endpoints[0], timeout=SECONDS) == host.info
    client.recorder.wait_envelopes(1)
    client.send(host, 2)


def test_introduce_to_nobody(floor: Floor) -> None:
    gone = floor.worker("gone")
    alice = floor.worker("alice")
    floor.kill(gone)
    with pytest.raises(ConnectionRefusedError, match="nobody listens"):
        alice.exchange.introduce(gone.endpoints[0], timeout=SECONDS)


@pytest.mark.parametrize("token", [b"another token, long enough", None])
def test_a_wrong_token(floor: Floor, token: bytes | None) -> None:
    host = floor.worker("host")
    stranger = floor.worker("alice", token=token)
    with pytest.raises(AuthenticationError, match="TELEGRAD_TOKEN"):
        stranger.exchange.introduce(host.endpoints[0], timeout=SECONDS)
    stranger.knows(host)
    stranger.post(host, 1)
    assert "token" in stranger.recorder.wait_lost().reason
    assert host.recorder.envelopes == []


def test_who_claims_and_does_not_prove_is_told_to_the_floor_above(floor: Floor) -> None:
    refused: list[tuple[WorkerInfo, str]] = []
    host = floor.worker("host", on_refused=lambda claimed, words: refused.append((claimed, words)))
    stranger = floor.worker("alice", token=b"another token, long enough")
    with pytest.raises(AuthenticationError):
        stranger.exchange.introduce(host.endpoints[0], timeout=SECONDS)
    ((claimed, words),) = refused
    assert claimed == stranger.info
    assert "another token" in words


def test_a_listener_without_the_token_gets_no_envelope(floor: Floor) -> None:
    host = floor.worker("host", token=None)
    alice = floor.worker("alice")
    with pytest.raises(AuthenticationError, match="listener holds no token"):
        alice.exchange.introduce(host.endpoints[0], timeout=SECONDS)


def test_no_token_at_all(floor: Floor) -> None:
    alice, bob = floor.pair(token=None)
    alice.send(bob, 1)


def test_another_job(floor: Floor) -> None:
    host = floor.worker("host", job="training")
    alice = floor.worker("alice", job="serving")
    with pytest.raises(RendezvousError, match=r"'serving'.*'training'"):
        alice.exchange.introduce(host.endpoints[0], timeout=SECONDS)


def test_a_peer_that_is_not_admitted(floor: Floor) -> None:
    guests = GuestList()
    guests.close("the door is shut")
    host = floor.worker("host", guests=guests)
    alice = floor.worker("alice")
    with pytest.raises(RendezvousError, match=r"'alice' \(rank 1, .*the door is shut"):
        alice.exchange.introduce(host.endpoints[0], timeout=SECONDS)


def test_what_was_posted_before_an_endpoint_was_known_leaves_then(floor: Floor) -> None:
    """Nobody looked again: the envelope waited until the silence lost the peer."""
    alice, bob = floor.worker("alice"), floor.worker("bob")
    alice.exchange.connect(bob.info, ())
    alice.post(bob, 1)
    run_on(shared_loop_thread(), lambda: None)  # it was looked at, and found nobody to dial
    alice.knows(bob)
    assert bob.recorder.wait_envelopes(1)[0].call == 1


def test_a_dial_that_ends_after_the_close_leaves_no_carrier(floor: Floor) -> None:
    bob = floor.worker("bob")
    slow = Slow(floor.transport())
    alice = floor.worker("alice", transport=slow).knows(bob)
    alice.post(bob, 1)
    assert slow.dialling.wait(SECONDS)
    alice.exchange.close(0.05)
    shared_loop_thread().call_soon(slow.go.set)
    assert slow.closed.wait(SECONDS)


def test_a_goodbye_that_cannot_be_answered_closes_the_carrier(floor: Floor) -> None:
    """The write under way failed, the answer was never said, and nobody closed the stream."""
    bob = floor.worker("bob")
    slow = Slow(floor.transport())
    loop = shared_loop_thread()
    loop.call_soon(slow.go.set)
    alice = floor.worker("alice", transport=slow).knows(bob)
    alice.send(bob, 1)
    loop.run(slow.get_stuck(), SECONDS)
    alice.post(bob, 2)
    assert slow.writing.wait(SECONDS)
    bob.exchange.leave(alice.info, "enough")
    assert alice.recorder.wait_lost().reason == "enough"
    loop.call_soon(slow.go.set)
    assert slow.closed.wait(SECONDS)
