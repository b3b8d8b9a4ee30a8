from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from telegrad.errors import DecodeError
from telegrad.transport.session import ENVELOPES_PER_RECEIPT, Session
from telegrad.wire import PIECE_BYTES, Envelope, Frame, Goodbye, Piece, pack_frame, unpack_frame

BIG = PIECE_BYTES + 70_000


def envelope(call: int, size: int = 0) -> Envelope:
    return Envelope("test.message", call, buffers=[bytes([call % 256]) * size] if size else [])


def connected() -> tuple[Session, Session]:
    a, b = Session(), Session()
    a.connection_made(0)
    b.connection_made(0)
    return a, b


def carry(a: Session, b: Session) -> list[Envelope]:
    """One write of a, taken by b."""
    return b.received(unpack_frame(pack_frame(a.next_write())))


def is_pending(session: Session) -> bool:
    return session.pending


def is_flushed(session: Session) -> bool:
    return session.flushed


def test_envelopes_coalesce_and_receipts_free_them() -> None:
    a, b = connected()
    for call in range(1, 4):
        assert a.post(envelope(call)) == call
    assert [got.call for got in carry(a, b)] == [1, 2, 3]
    assert not is_flushed(a)
    assert not is_pending(a)
    assert carry(b, a) == []
    assert is_flushed(a)
    assert a.statistics().unacknowledged == 0


def test_a_receipt_goes_alone_after_many_envelopes() -> None:
    a, b = connected()
    for call in range(ENVELOPES_PER_RECEIPT - 1):
        a.post(envelope(call))
    carry(a, b)
    assert not is_pending(b)
    a.post(envelope(0))
    carry(a, b)
    assert is_pending(b)
    carry(b, a)
    assert not is_pending(b)
    assert is_flushed(a)


def test_an_envelope_with_pieces_completes_after_later_ones() -> None:
    a, b = connected()
    a.post(envelope(1, 3 * PIECE_BYTES))
    a.post(envelope(2))
    assert [got.call for got in carry(a, b)] == [2]
    a.post(envelope(3))
    assert [got.call for got in carry(a, b)] == [3]
    assert b.received_number == 0
    done = carry(a, b) + carry(a, b)
    assert [got.call for got in done] == [1]
    assert b.received_number == 3
    assert bytes(done[0].buffers[0]) == b"\1" * (3 * PIECE_BYTES)


def test_control_never_starves_pieces() -> None:
    a, b = connected()
    a.post(envelope(1, 2 * PIECE_BYTES))
    done: list[int] = []
    for _ in range(8):
        for call in range(2, 22):
            a.post(Envelope("test.message", call, document=b"x" * 60_000))
        done += [got.call for got in carry(a, b)]
    assert 1 in done


def test_a_write_is_bounded() -> None:
    a, _ = connected()
    for call in range(100):
        a.post(Envelope("test.message", call, document=b"x" * 60_000))
        a.post(envelope(call, BIG))
    while is_pending(a):
        assert len(pack_frame(a.next_write())) < 4 * 2**20 - 2**16


def test_an_envelope_is_not_changed_by_posting_and_goes_to_several() -> None:
    sent = envelope(1)
    for session in connected():
        session.post(envelope(9))
        assert session.post(sent) == 2
    assert sent.number == 0


def test_time_left_counts_from_the_post() -> None:
    a, b = connected()
    a.post(Envelope("test.message", time_left=5.0), now=100.0)
    a.post(Envelope("test.message"), now=100.0)
    first, second = b.received(unpack_frame(pack_frame(a.next_write(now=103.0))))
    assert first.time_left == pytest.approx(2.0)
    assert second.time_left == math.inf


def test_a_goodbye_comes_last() -> None:
    a, b = connected()
    a.post(envelope(1, 2 * PIECE_BYTES))
    a.leave("done")
    got: list[Envelope] = []
    goodbye = None
    while goodbye is None:
        assert is_pending(a)
        frame = unpack_frame(pack_frame(a.next_write()))
        got += b.received(frame)
        goodbye = frame.goodbye
    assert [one.call for one in got] == [1]
    assert goodbye == Goodbye("done")
    assert not is_pending(a)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(receipt=1),
        Frame(envelopes=[Envelope("test.message", number=0)]),
        Frame(pieces=[Piece(5, 2, 0, b"data")]),
    ],
)
def test_a_frame_that_breaks_the_protocol(frame: Frame) -> None:
    session, _ = connected()
    with pytest.raises(DecodeError):
        session.received(frame)


def test_a_peer_that_forgot_is_not_the_one() -> None:
    a, b = connected()
    a.post(envelope(1))
    carry(a, b)
    carry(b, a)
    a.connection_lost()
    with pytest.raises(DecodeError, match="acknowledged before: 1"):
        a.connection_made(0)
    with pytest.raises(DecodeError, match="posted: 1"):
        a.connection_made(2)


class Promise(RuleBasedStateMachine):
    """Two ends, a carrier each way; it breaks at any point and loses what is under way."""

    @initialize()
    def start(self) -> None:
        self.ends = (Session(), Session())
        self.wires: tuple[list[bytes], list[bytes]] = ([], [])
        self.posted: tuple[list[int], list[int]] = ([], [])
        self.got: tuple[list[int], list[int]] = ([], [])
        self.up = False

    side = st.integers(0, 1)

    @rule(side=side, size=st.sampled_from([0, 0, 0, 1, 70_000, BIG]))
    def post(self, side: int, size: int) -> None:
        call = len(self.posted[side])
        self.ends[side].post(envelope(call, size))
        self.posted[side].append(call)

    @precondition(lambda self: self.up)
    @rule(side=side)
    def write(self, side: int) -> None:
        self.wires[side].append(pack_frame(self.ends[side].next_write()))

    @precondition(lambda self: self.up)
    @rule(side=side)
    def receive(self, side: int) -> None:
        if self.wires[1 - side]:
            frame = unpack_frame(self.wires[1 - side].pop(0))
            for got in self.ends[side].received(frame):
                if got.buffers:
                    assert set(bytes(got.buffers[0])) == {got.call % 256}
                self.got[side].append(got.call)

    @precondition(lambda self: self.up)
    @rule()
    def lose_carrier(self) -> None:
        for end, wire in zip(self.ends, self.wires, strict=True):
            end.connection_lost()
            wire.clear()
        self.up = False

    @precondition(lambda self: not self.up)
    @rule()
    def connect(self) -> None:
        numbers = [end.received_number for end in self.ends]
        self.ends[0].connection_made(numbers[1])
        self.ends[1].connection_made(numbers[0])
        self.up = True

    @invariant()
    def at_most_once(self) -> None:
        for side in (0, 1):
            got = self.got[side]
            assert len(set(got)) == len(got)
            assert set(got) <= set(self.posted[1 - side])

    def teardown(self) -> None:
        """Once nothing breaks any more, everything arrives and every receipt comes back."""
        if not self.up:
            self.connect()
        for _ in range(1000):
            for side in (0, 1):
                self.write(side)
                while self.wires[side]:
                    self.receive(1 - side)
            if all(end.flushed for end in self.ends):
                break
        for side in (0, 1):
            assert sorted(self.got[side]) == self.posted[1 - side]
            assert self.ends[side].flushed
            assert not self.ends[side].pending


TestPromise = Promise.TestCase
TestPromise.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


@given(st.lists(st.sampled_from([0, 100, 70_000, BIG]), max_size=12), st.integers(1, 2**21))
@settings(max_examples=40)
def test_every_limit_carries_everything(sizes: list[int], limit: int) -> None:
    a, b = connected()
    for call, size in enumerate(sizes):
        a.post(envelope(call, size))
    got: list[int] = []
    while a.pending:
        got += [one.call for one in b.received(unpack_frame(pack_frame(a.next_write(limit))))]
    assert sorted(got) == list(range(len(sizes)))
