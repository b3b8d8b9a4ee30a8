"""Big parts travel beside the control stream: whole, once, in turns, by threads of their own."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from telegrad.testing import leaks
from telegrad.transport import CarrierClosedError, Session, hands_over, shared_loop_thread
from telegrad.transport.channels.base import Counters, LaneThreads
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.channels.lane import CarrierChunks, Lane
from telegrad.transport.channels.lanes import LANES, RETRY_SECONDS
from telegrad.transport.channels.pace import Pace
from telegrad.transport.session.carriers import LEAST_PATIENCE
from telegrad.types import WorkerInfo
from telegrad.wire import (
    BLOCK_BYTES,
    CHUNK_HEADER_BYTES,
    Assembly,
    Buffer,
    Envelope,
    copy_of,
    pieces,
)
from tests.repeated import TRANSPORTS
from tests.transport.taps import Tap, tapped_pair
from tests.transport.workers import (
    SECONDS,
    Floor,
    ManualClock,
    Recorder,
    Worker,
    at_once,
    beat,
    first_of,
    floor_of,
    let_pass,
    over_one_transport,
    pattern,
    wait_until,
)

MIB = 2**20
LANE = "telegrad-lane"


@pytest.fixture(autouse=True)
def _nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of one host have lanes, too, where the system has no memory that they could share."""
    monkeypatch.setattr("telegrad.transport.sockets.unix.can_share", lambda: False)


def exchange_big_ones(alice: Worker, bob: Worker, first: int = 0) -> None:
    """Posts big ones both ways; each comes once, as it was, behind so many that came before."""
    sent = {call: pattern(3 * MIB + call, call) for call in range(first, first + 3)}
    for call, data in sent.items():
        alice.post(bob, call, buffers=[data])
        bob.post(alice, call, buffers=[data])
    for worker in (alice, bob):
        got = worker.recorder.wait_envelopes(first + 3)[first:]
        assert sorted(one.call for one in got) == list(sent)
        assert {one.call: bytes(one.buffers[0]) for one in got} == sent
        assert not worker.recorder.lost


def chunks_received(worker: Worker) -> int:
    return worker.exchange.statistics().chunks_received


# -- what moves --------------------------------------------------------------------------------


def test_lanes_are_opened_when_there_is_something_big(floor: Floor) -> None:
    alice, bob = floor.pair()
    alice.send(bob, 1, buffers=[bytes(1000)])
    assert alice.exchange.statistics().lanes == 0
    bob.post(alice, 2, buffers=[pattern(3 * MIB)])  # bob accepted the stream: alice dials
    alice.recorder.wait_envelopes(1)
    alice.send(bob, 3, document=pattern(300_000))
    here, there = alice.exchange.statistics(), bob.exchange.statistics()
    assert here.connections == there.connections == 1
    assert 1 <= here.lanes <= LANES
    assert (here.chunks_received, there.chunks_received) == (3, 1)
    assert 3 * MIB < here.bulk_bytes_received < 3 * MIB + 3000
    assert here.bytes_received > here.bulk_bytes_received


@pytest.mark.few(1)
def test_big_ones_both_ways_at_once(floor: Floor) -> None:
    alice, bob = floor.pair()
    n = 4
    data = [pattern(4 * MIB + call, call) for call in range(n)]
    for call in range(n):
        alice.post(bob, call, buffers=[data[call], b"small", data[call][: 2 * MIB]])
        bob.post(alice, call, buffers=[data[call]], document=data[call][: MIB + 7])
    for worker in (alice, bob):
        got = worker.recorder.wait_envelopes(n)
        assert sorted(one.call for one in got) == list(range(n))
        assert all(bytes(one.buffers[0]) == data[one.call] for one in got)
        assert worker.exchange.statistics().connections == 1
    assert bytes(bob.recorder.envelopes[0][1].buffers[1]) == b"small"


@over_one_transport
def test_a_smaller_one_is_not_behind_a_big_one(floor: Floor) -> None:
    alice, bob = floor.worker("alice"), floor.worker("bob")
    alice.exchange.connect(bob.info, ())  # may post; nothing leaves before both are there
    seen: dict[int, int] = {}
    bob.recorder.react = lambda _, got: seen.update({got.call: chunks_received(bob)})
    alice.post(bob, 1, buffers=[bytes(64 * MIB)])
    alice.post(bob, 2, buffers=[bytes(300 * 1024)])
    alice.knows(bob)
    bob.recorder.wait_envelopes(2)
    assert bob.recorder.calls() == [2, 1]
    assert seen[2] < 48
    assert seen[1] == 65


@pytest.mark.parametrize("round_", first_of(5))
def test_of_crossed_dials_one_keeps_its_lanes(floor: Floor, round_: int) -> None:
    alice, bob = floor.pair()
    big = [bytes(2 * MIB)]
    at_once(
        lambda: alice.post(bob, round_, buffers=big), lambda: bob.post(alice, round_, buffers=big)
    )
    for worker in (alice, bob):
        worker.recorder.wait_envelopes(1)
    wait_until("lanes", lambda: alice.exchange.statistics().lanes == LANES)
    wait_until("lanes", lambda: bob.exchange.statistics().lanes == LANES)
    for worker in (alice, bob):
        assert worker.exchange.statistics().connections == 1


# -- what breaks -------------------------------------------------------------------------------


@pytest.mark.few(1)
@over_one_transport
@pytest.mark.parametrize("purpose", ["bulk", "control"])
@pytest.mark.parametrize("passed", [5, 6, 8, 11])
def test_what_breaks_in_the_middle_is_replaced(floor: Floor, purpose: str, passed: int) -> None:
    alice, bob, tap = tapped_pair(floor)
    tap.kill[purpose] = passed
    exchange_big_ones(alice, bob)
    if purpose == "bulk":
        assert purpose not in tap.kill


@pytest.mark.parametrize("opened", [0, 1])
@pytest.mark.long
def test_a_lane_that_cannot_be_opened_costs_no_peer(floor: Floor, opened: int) -> None:
    """The first large array lost a peer to which small calls went as before."""
    clock = ManualClock()
    alice, bob, tap = tapped_pair(floor, clock=clock)
    tap.refuse["bulk"] = opened
    exchange_big_ones(alice, bob)
    assert alice.exchange.statistics().connections == 1
    assert bob.exchange.statistics().lanes == opened
    del tap.refuse["bulk"]
    exchange_big_ones(alice, bob, 3)  # none is dialled so soon
    assert bob.exchange.statistics().lanes == opened
    clock.now += RETRY_SECONDS
    exchange_big_ones(alice, bob, 6)
    wait_until("lanes", lambda: alice.exchange.statistics().lanes == (opened or LANES))
    assert alice.exchange.statistics().connections == 1
    assert not alice.recorder.lost


@pytest.mark.few(1)
@over_one_transport
@pytest.mark.parametrize("passed", range(5))
def test_a_lane_that_breaks_before_it_carries_anything_was_never_open(
    floor: Floor, passed: int
) -> None:
    alice, bob, tap = tapped_pair(floor)
    tap.kill["bulk"] = passed
    exchange_big_ones(alice, bob)
    assert "bulk" not in tap.kill


@pytest.mark.few(1)
def test_a_lane_that_is_refused_says_so_once(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob, tap = tapped_pair(floor)
    tap.refuse["bulk"] = 0
    exchange_big_ones(alice, bob)
    exchange_big_ones(alice, bob, 3)
    wait_until("the words", lambda: "slower" in caplog.text)
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said == [
        "large arrays to and from bob share the stream of calls, and are slower: refused by the "
        "test"
    ]


@over_one_transport
def test_without_a_lane_a_smaller_one_is_not_behind_a_big_one(floor: Floor) -> None:
    tap = Tap(floor.transport())
    tap.refuse["bulk"] = 0
    alice, bob = floor.worker("alice", transport=tap), floor.worker("bob")
    alice.exchange.connect(bob.info, ())  # may post; nothing leaves before both are there
    alice.post(bob, 1, buffers=[bytes(64 * MIB)])
    alice.post(bob, 2, buffers=[bytes(300 * 1024)])
    alice.post(bob, 3)
    alice.knows(bob)
    bob.recorder.wait_envelopes(3)
    assert bob.recorder.calls() == [3, 2, 1]


@over_one_transport
@pytest.mark.parametrize("end", ["kill", "fence", "silence"])
def test_a_loss_in_the_middle_lets_go_of_memory(floor: Floor, end: str) -> None:
    clock = ManualClock()
    alice, bob, tap = tapped_pair(floor, clock=clock, lost_after=1.0)
    tap.hold["bulk"] = 5
    outgoing = np.zeros(32 * MIB, np.uint8)
    held = weakref.ref(outgoing)
    alice.post(bob, 1, buffers=[outgoing.data])
    del outgoing
    wait_until("chunks", lambda: tap.hold["bulk"] == 0)
    if end == "kill":
        floor.kill(bob)
    elif end == "fence":
        bob.exchange.fence(alice.info, "enough")
    else:
        tap.hold["control"] = 0
        while not alice.recorder.lost:
            let_pass(clock, 1.0, alice)
    assert alice.recorder.wait_lost().worker == "bob"
    wait_until("memory", lambda: gc.collect() >= 0 and held() is None)
    assert bob.recorder.calls() == []


@over_one_transport
def test_lanes_that_stand_still_are_replaced(floor: Floor) -> None:
    """The peer lives and nothing arrives: that must not last for ever."""
    clock = ManualClock()
    alice, bob, tap = tapped_pair(floor, clock=clock, lost_after=10.0)
    tap.hold["bulk"] = 3
    data = pattern(16 * MIB)
    alice.post(bob, 1, buffers=[data])
    wait_until("chunks", lambda: tap.hold["bulk"] == 0)
    first = list(tap.carriers["bulk"])
    began = clock.now

    def replaced() -> bool:
        return all(carrier.closed.is_set() for carrier in first)

    while not replaced():
        assert clock.now < began + 4 * LEAST_PATIENCE  # it goes on while the next stream comes up
        beat(clock, 10.0, alice, bob, until=replaced)
    assert clock.now > began + LEAST_PATIENCE
    del tap.hold["bulk"]
    for carrier in list(tap.carriers["bulk"]):  # the next ones, if they ran into the hold
        if carrier not in first:
            shared_loop_thread().run(carrier.close())
    (got,) = bob.recorder.wait_envelopes(1)
    assert bytes(got.buffers[0]) == data
    assert not alice.recorder.lost
    assert not bob.recorder.lost


@over_one_transport
def test_lanes_that_are_slow_are_kept_and_get_small_chunks(floor: Floor) -> None:
    """A chunk now and then, for far longer than `lost_after`: to dial again would not help."""
    clock = ManualClock()
    alice, bob, tap = tapped_pair(floor, clock=clock, lost_after=1.0)
    tap.hold["bulk"] = 10
    data = pattern(16 * MIB)
    alice.post(bob, 1, buffers=[data])
    for _ in range(3):
        wait_until("chunks", lambda: tap.hold["bulk"] == 0)
        for _ in range(6):
            beat(clock, 0.3, alice, bob, until=lambda: False)
        tap.go_on("bulk", 2)
    assert alice.exchange.statistics().connections == 1
    assert not bob.recorder.envelopes
    tap.go_on("bulk", None)
    (got,) = bob.recorder.wait_envelopes(1)
    assert bytes(got.buffers[0]) == data
    sizes = [size for carrier in tap.carriers["bulk"] for size in carrier.sizes]
    assert sizes.count(CHUNK_HEADER_BYTES + BLOCK_BYTES) > 1
    assert alice.exchange.statistics().connections == 1
    assert not alice.recorder.lost
    assert not bob.recorder.lost


# -- what ends ---------------------------------------------------------------------------------


@pytest.mark.few(1)
def test_both_close_with_big_ones_under_way(floor: Floor) -> None:
    alice, bob = floor.pair()
    data = pattern(8 * MIB)
    alice.post(bob, 1, buffers=[data])
    bob.post(alice, 1, buffers=[data, data])
    at_once(*(partial(worker.exchange.close, SECONDS) for worker in (alice, bob)))
    for worker in (alice, bob):
        (got,) = worker.recorder.wait_envelopes(1)
        assert bytes(got.buffers[0]) == data


def test_the_answer_to_a_goodbye_is_heard_though_lanes_end_before_it(floor: Floor) -> None:
    """Whoever left took the end of a lane for a break, and waited until its time was over.

    As on a worker's line to the coordinator, one side listens and the other introduces itself.
    """
    host = floor.worker("coordinator")
    client = floor.worker("alice", listen=False)
    client.exchange.introduce(host.endpoints[0], timeout=SECONDS)
    host.send(client, 1, buffers=[bytes(5 * MIB)])
    ended = host.connection(client.info).ended
    host.exchange.leave(client.info)
    assert shared_loop_thread().run(ended.wait(), SECONDS)
    assert client.recorder.wait_lost().reason == "it left"


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("held", [False, True])
def test_nothing_is_left_open(kind: str, held: bool) -> None:
    def use() -> None:
        with floor_of(kind) as floor:
            alice, bob, tap = tapped_pair(floor)
            if held:  # closed with both ends in the middle of something
                tap.hold["bulk"] = 3
            alice.post(bob, 1, buffers=[bytes(8 * MIB)])
            bob.post(alice, 1, buffers=[bytes(8 * MIB)])
            if held:
                wait_until("chunks", lambda: tap.hold["bulk"] == 0)
            else:
                bob.recorder.wait_envelopes(1)
            alice.recorder.wait_envelopes(1)
            alice.exchange.close(0.2)

    use()
    with leaks.no_leaked_descriptors(), leaks.no_leaked_threads():
        use()


# -- who touches bytes -------------------------------------------------------------------------


def test_no_array_byte_is_copied_on_the_loop(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A big document is put together, and a message to oneself copied, by other threads."""
    copies: list[tuple[str, str]] = []

    def noting(what: str, function: Callable[..., object]) -> Callable[..., object]:
        def noted(*args: object) -> object:
            copies.append((what, threading.current_thread().name.partition("_")[0]))
            return function(*args)

        return noted

    monkeypatch.setattr(CarrierChunks, "send", noting("make", CarrierChunks.send))
    monkeypatch.setattr("telegrad.wire.Assembly.join", noting("join", Assembly.join))
    monkeypatch.setattr("telegrad.transport.session.loopback.copy_of", noting("own", copy_of))
    alice, bob = floor.pair()

    def echo(peer: WorkerInfo, got: Envelope) -> None:  # on the loop
        if got.call == 1:
            bob.post(bob, 2, buffers=got.buffers)
            reply = Envelope("test.reply", got.call, reply=True, buffers=got.buffers)
            bob.exchange.post(peer, reply)

    bob.recorder.react = echo
    data = pattern(3 * MIB)
    alice.post(bob, 1, buffers=[data], document=data)
    (echoed,) = alice.recorder.wait_envelopes(1)
    came, own = bob.recorder.wait_envelopes(2)
    assert bytes(echoed.buffers[0]) == bytes(own.buffers[0]) == came.document == data
    assert {thread for what, thread in copies if what != "own"} == {LANE}
    assert [what for what, _ in copies].count("join") == 2
    assert [each for each in copies if each[0] == "own"] == [("own", "telegrad-resolver")]


def test_a_lane_hands_replies_over_for_others(floor: Floor) -> None:
    """A callback that called the same peer there would wait for its own lane."""
    alice, bob = floor.pair()
    handing: list[bool] = []
    alice.recorder.react = lambda *_: handing.append(hands_over())
    bob.post(alice, 1, reply=True, buffers=[bytes(MIB)])
    wait_until("the reply", lambda: bool(handing))
    assert handing == [True]


class Watched:
    """A lock that tells when a thread asks for it."""

    def __init__(self) -> None:
        self.inner = threading.Lock()
        self.asked = threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.inner.acquire()

    def __exit__(self, *_: object) -> None:
        self.inner.release()


class Ending:
    """The messages of a lane, of which none comes until it ends."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended = threading.Event()

    def send(self, header: bytes, data: Buffer) -> None:
        self.sent.append(header)

    def receive(self) -> tuple[Buffer, int]:
        assert self.ended.wait(SECONDS)
        raise CarrierClosedError("ended by the test")

    def fill(self, place: memoryview) -> None:
        raise AssertionError("nothing came")


def test_a_slow_thread_of_a_lane_takes_no_piece_of_the_next_stream() -> None:
    """It saw that its lane was open, and had the session's lock only when the next one was up."""
    session, lock, chunks, threads = Session(), Watched(), Ending(), LaneThreads()
    session.connection_made(0)
    session.post(Envelope("test.message", buffers=[bytes(MIB)]))

    def ignore(*_: object) -> None:
        raise AssertionError("nothing came, and nothing broke")

    cargo = Cargo(session, lock, ignore)  # type: ignore[arg-type]
    carrier: Any = None  # which is for its owner
    lane = Lane(
        carrier,
        chunks,  # type: ignore[arg-type]
        cargo,
        Counters(),
        pace=Pace(0.0, 10.0),
        on_broken=ignore,
    )
    with lock.inner:
        lane.start(threads)
        assert lock.asked.wait(SECONDS)
        lane.let_go()
        session.connection_lost()
        session.connection_made(0)
        session.next_write()
    chunks.ended.set()
    threads.close()
    assert not chunks.sent
    assert session.cutting


@pytest.mark.few(1)
@over_one_transport
@pytest.mark.parametrize("fails", range(4))
def test_without_threads_for_lanes_arrays_travel_all_the_same(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Its parts waited for a minute before the lanes counted as stalled, and nobody said why."""
    start, lanes_started = threading.Thread.start, itertools.count()

    def refuse(thread: threading.Thread) -> None:
        if thread.name == LANE and next(lanes_started) >= fails:  # each end starts two
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    alice, bob, _ = tapped_pair(floor)
    exchange_big_ones(alice, bob)
    assert alice.exchange.statistics().connections <= 2  # a lane may have carried something


def test_the_threads_of_lanes_start_when_needed_and_end_with_the_exchange() -> None:
    def running() -> int:
        return sum(thread.name == LANE for thread in threading.enumerate())

    before = running()
    with floor_of("inproc") as floor:
        alice, bob = floor.pair()
        alice.send(bob, 1)
        assert running() == before
        alice.send(bob, 2, buffers=[bytes(MIB)])
        assert running() > before
    assert running() == before


def test_a_message_that_fails_nothing_loses_the_peer_for_lack_of_memory(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("telegrad.wire.Assembly.join", fail)
    alice, bob = floor.pair()
    alice.post(bob, 1, buffers=[bytes(MIB)])
    assert "no room" in bob.recorder.wait_lost().reason
    assert "fenced" in alice.recorder.wait_lost().reason
    with pytest.raises(ConnectionError):
        bob.exchange.post(WorkerInfo("alice", 0, 1), Envelope("test.message"))


def no_memory(*_: object) -> NoReturn:
    raise MemoryError


@pytest.mark.few(1)
def test_a_call_without_memory_fails_alone(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes at once with the error, and its sender is asked for no more of it."""

    def memory(kind: str, size: int) -> memoryview | None:
        if size == 8 * MIB:
            raise MemoryError
        return None

    monkeypatch.setattr(Recorder, "memory", staticmethod(memory))
    monkeypatch.setattr(Recorder, "takes_failed", lambda *_: True)
    alice, bob = floor.pair()
    beside = pattern(2 * MIB)
    for call in range(0, 10, 2):
        alice.post(bob, call + 1, buffers=[beside, bytes(8 * MIB), beside], document=bytes(MIB))
        alice.post(bob, call + 2, buffers=[beside])
    for call in range(0, 10, 2):
        failed, whole = bob.recorder.wait_call(call + 1), bob.recorder.wait_call(call + 2)
        assert f"no memory for {8 * MIB} bytes of test.message" in str(failed.failure)
        assert not failed.buffers
        assert (whole.failure, bytes(whole.buffers[0])) == (None, beside)
    assert sorted(bob.recorder.calls()) == list(range(1, 11))
    wait_until("receipts for all", lambda: alice.connection(bob.info).connection.flushed)
    assert not alice.recorder.lost
    assert not bob.recorder.lost


def test_a_receiver_without_memory_says_so_and_blames_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Under `ulimit -v` each rank told the other that it had broken the protocol."""
    with floor_of("grpc") as floor:
        alice, bob = floor.worker("alice"), floor.worker("bob")
        alice.knows(bob)
        bob.exchange.connect(alice.info, alice.endpoints)
        alice.send(bob, 0)
        monkeypatch.setattr(pieces, "np", SimpleNamespace(empty=no_memory, uint8=np.uint8))
        monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
        alice.post(bob, 1, buffers=[pattern(16 * MIB)])
        told = f"process {os.getpid()}, has no memory for {16 * MIB} bytes of "
        for worker in (alice, bob):
            reason = worker.recorder.wait_lost().reason
            assert told in reason
            assert "`ulimit -v` allows it 1024 MiB" in reason
            assert "protocol" not in reason
    assert "cut_off" not in caplog.text
