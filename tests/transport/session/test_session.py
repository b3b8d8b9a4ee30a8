from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from telegrad.errors import DecodeError, EncodeError
from telegrad.transport.limits import MAX_MESSAGE_BYTES
from telegrad.transport.security.tags import TAG_BYTES
from telegrad.transport.session.session import ENVELOPES_PER_RECEIPT, Session
from telegrad.wire import (
    BLOCK_BYTES,
    DEFAULT_LIMITS,
    PIECE_BYTES,
    DecodeLimits,
    Envelope,
    Frame,
    Lent,
    Piece,
    chunk_header,
    pack_frame,
    unpack_frame,
)
from tests.wire.chunks import read_chunk

BIG = PIECE_BYTES + 70_000
STRIDES = [PIECE_BYTES, 21 * BLOCK_BYTES, 4 * BLOCK_BYTES]
Copy: TypeAlias = tuple[Piece, memoryview]


def envelope(call: int, size: int = 0) -> Envelope:
    return Envelope("test.message", call, buffers=[bytes([call % 256]) * size] if size else [])


def connected(limits: DecodeLimits = DEFAULT_LIMITS) -> tuple[Session, Session]:
    a, b = Session(limits), Session(limits)
    a.connection_made(0)
    b.connection_made(0)
    return a, b


def carry(a: Session, b: Session) -> list[Envelope]:
    """One write of a, taken by b."""
    return b.received(unpack_frame(pack_frame(a.next_write())))


def take(b: Session, piece: Piece) -> list[Envelope]:
    """A piece that came on a lane: claimed, copied, placed and joined."""
    _, arrived = read_chunk(chunk_header(0, piece) + bytes(piece.data))
    place = b.claim(arrived.span)
    return [] if place is None else put(b, arrived, place)


def put(b: Session, piece: Piece, place: memoryview) -> list[Envelope]:
    """What happens once a claimed piece was copied."""
    place[:] = piece.data
    assembly = b.settle(piece.span, came=True)
    if assembly is None:
        return []
    assembly.join()
    return b.finish(piece.number)


def pieces_of(a: Session, most: int = PIECE_BYTES) -> list[Piece]:
    """All that waits for lanes, in the order in which they would send it."""
    pieces = []
    while (piece := a.next_piece(most)) is not None:
        pieces.append(piece)
    return pieces


def is_waiting(session: Session) -> bool:
    return bool(session.cutting)


def is_pending(session: Session) -> bool:
    return session.pending


def is_flushed(session: Session) -> bool:
    return session.flushed


def test_what_no_receiver_takes_is_refused_at_the_sender() -> None:
    """It was sent, and cost the sender its peer: the announcement breaks the protocol."""
    a, b = connected(DecodeLimits(message_bytes=2 * BIG))
    with pytest.raises(EncodeError, match="'test.message' is too big .*; send less in one call"):
        a.post(Envelope("test.message", 1, buffers=[bytes(BIG), bytes(BIG), b"x"]))
    assert a.statistics().posted == 0
    a.post(Envelope("test.message", 1, buffers=[bytes(BIG), bytes(BIG)]))
    assert carry(a, b) == []


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


def test_a_receipt_that_is_due_goes_over_the_next_carrier() -> None:
    a, b = connected()
    for call in range(ENVELOPES_PER_RECEIPT):
        a.post(envelope(call))
    carry(a, b)
    b.connection_lost()
    b.connection_made(0)
    assert is_pending(b)


def test_an_envelope_with_pieces_completes_after_later_ones() -> None:
    a, b = connected()
    a.post(envelope(1, 3 * PIECE_BYTES))
    a.post(envelope(2))
    assert a.next_piece() is None  # it was not announced yet
    assert [got.call for got in carry(a, b)] == [2]
    a.post(envelope(3))
    assert [got.call for got in carry(a, b)] == [3]
    assert b.received_number == 0
    assert [b.announced(number) for number in (1, 2, 3, 4)] == [True, True, True, False]
    first, second, third = pieces_of(a)
    assert take(b, third) == take(b, first) == take(b, first) == []
    assert not is_pending(b)
    (done,) = take(b, second)
    assert (done.call, b.received_number) == (1, 3)
    assert bytes(done.buffers[0]) == b"\1" * (3 * PIECE_BYTES)
    assert is_pending(b)  # the sender holds 3 MiB until the receipt is there
    carry(b, a)
    assert is_flushed(a)


def test_big_ones_take_turns() -> None:
    a, b = connected()
    for call, size in enumerate([64 * PIECE_BYTES, 300 * 2**10, 2 * PIECE_BYTES], 1):
        a.post(Envelope("test.message", call, buffers=[bytes(size)]))
    carry(a, b)
    order = [piece.number for piece in pieces_of(a)]
    assert order == [1, 2, 3, 1, 3, *[1] * 62]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=6))
def test_what_goes_in_order_has_one_turn(sent: list[tuple[int, bool]]) -> None:
    a, b = connected()
    for n, in_order in sent:
        buffers = [bytes(n * PIECE_BYTES)]
        a.post(Envelope("test.message", buffers=buffers, in_order=in_order))
    carry(a, b)
    turns = [[number] * n for number, (n, in_order) in enumerate(sent, 1) if not in_order]
    together = [(number, n) for number, (n, in_order) in enumerate(sent, 1) if in_order]
    if together:
        place = sum(not in_order for _, in_order in sent[: together[0][0] - 1])
        turns.insert(place, [number for number, n in together for _ in range(n)])
    expected = [turn[k] for k in range(20) for turn in turns if k < len(turn)]
    assert [piece.number for piece in pieces_of(a)] == expected


def test_pieces_are_no_bigger_than_a_lane_wants_them() -> None:
    """And what is left of one is next in its envelope's turn."""
    a, b = connected()
    for call in (1, 2):
        a.post(envelope(call, BIG))
    carry(a, b)
    stride = 40 * BLOCK_BYTES
    found = [(each.number, each.offset, len(each.data)) for each in pieces_of(a, stride)]
    rest = PIECE_BYTES - stride
    places = [(0, stride), (stride, rest), (PIECE_BYTES, BIG - PIECE_BYTES)]
    assert found == [(number, *place) for place in places for number in (1, 2)]


@pytest.mark.parametrize("in_order", [False, True])
def test_what_has_a_receipt_is_cut_no_further(in_order: bool) -> None:
    """It was complete when the carrier broke: its pieces would go for nothing, not those behind."""
    a, b = connected()
    for _ in range(2):
        buffers = [bytes(2 * PIECE_BYTES)]
        a.post(Envelope("test.message", buffers=buffers, in_order=in_order))
    carry(a, b)
    first = [piece for piece in pieces_of(a) if piece.number == 1]
    for end in (a, b):
        end.connection_lost()
        end.connection_made(0)
    for piece in first:  # copies that were under way when it broke
        take(b, piece)
    carry(a, b)
    carry(b, a)
    assert [piece.number for piece in pieces_of(a)] == [2, 2]
    assert not is_waiting(a)


def test_what_has_a_receipt_before_it_was_announced_anew_is_not() -> None:
    a, b = connected()
    a.post(envelope(1, PIECE_BYTES))
    carry(a, b)
    (piece,) = pieces_of(a)
    a.post(envelope(2))
    for end in (a, b):
        end.connection_lost()
        end.connection_made(0)
    take(b, piece)  # a copy that was under way
    carry(b, a)
    assert is_pending(a)
    assert [each.call for each in carry(a, b)] == [2]
    assert a.statistics().repeated == b.statistics().dropped == 0
    carry(b, a)
    assert is_flushed(a)


def test_an_envelope_that_is_announced_in_two_ways_is_handed_over_once() -> None:
    a, b = connected()
    a.post(envelope(1, BIG))
    carry(a, b)
    assert b.received(Frame(envelopes=[Envelope("test.message", 1, number=1)])) == []
    got = [one for piece in pieces_of(a) for one in take(b, piece)]
    assert [one.number for one in got] == [1]


def test_a_document_that_was_lent_may_come_again_in_pieces() -> None:
    """A part beside it goes by lanes, and the stream breaks while that is under way."""
    a, b = connected()
    document, big = bytes(200_000), bytes(BIG)
    staged = {0: memoryview(bytearray(document))}
    a.post(Envelope("k", 1, False, math.inf, 0, document, b"", {}, [big], staged=staged))
    frame = unpack_frame(pack_frame(a.next_write(lend=lambda _: {0: Lent(1, 1, 0, len(document))})))
    frame.envelopes[0].document = document  # as who reads what was lent does
    assert b.received(frame) == []
    for session in (a, b):
        session.connection_lost()
        session.connection_made(0)
    assert carry(a, b) == []
    complete = [each for piece in pieces_of(a) for each in take(b, piece)]
    assert [(each.document, bytes(each.buffers[0])) for each in complete] == [(document, big)]


def test_a_loss_lets_go_of_pieces_and_assemblies() -> None:
    a, b = connected()
    a.post(envelope(1, BIG))
    carry(a, b)
    piece = a.next_piece()
    assert piece is not None
    place = b.claim(piece.span)
    assert place is not None
    a.abandon()
    b.abandon()
    assert not is_waiting(a)
    assert put(b, piece, place) == []
    assert b.finish(1) == []


@pytest.mark.parametrize("comes", [False, True])
def test_nothing_is_handed_over_while_somebody_still_writes(comes: bool) -> None:
    """The lane of a claim broke, and has not noticed; the next lane was faster."""
    a, b = connected()
    a.post(envelope(1, 70_000))
    carry(a, b)
    (piece,) = pieces_of(a)
    old, new = b.claim(piece.span), b.claim(piece.span)
    assert old is not None
    assert new is not None
    new[:] = piece.data
    assert b.settle(piece.span, came=True) is None
    assert b.claim(piece.span) is None
    if comes:
        old[:] = piece.data
    assembly = b.settle(piece.span, came=comes)
    assert assembly is not None
    assembly.join()
    (got,) = b.finish(1)
    assert bytes(got.buffers[0]) == bytes(piece.data)


def test_a_write_is_bounded() -> None:
    a, _ = connected()
    for call in range(100):
        a.post(Envelope("test.message", call, document=b"x" * 60_000))
        a.post(envelope(call, BIG))
    while is_pending(a):
        assert len(pack_frame(a.next_write())) <= MAX_MESSAGE_BYTES - TAG_BYTES


def test_one_envelope_goes_to_several_sessions() -> None:
    sent = Envelope("test.message", 1, time_left=5.0)
    ends = connected()
    for others, session in enumerate(ends):
        for _ in range(others):
            session.post(envelope(9))
        session.post(sent, now=100.0)
    frames = [session.next_write(now=102.0) for session in ends]
    assert [[one.number for one in frame.envelopes] for frame in frames] == [[1], [1, 2]]
    assert [frame.envelopes[-1].time_left for frame in frames] == [3.0, 3.0]


def test_time_left_counts_from_the_post() -> None:
    a, b = connected()
    a.post(Envelope("test.message", time_left=5.0), now=100.0)
    a.post(Envelope("test.message"), now=100.0)
    first, second = b.received(unpack_frame(pack_frame(a.next_write(now=103.0))))
    assert first.time_left == pytest.approx(2.0)
    assert second.time_left == math.inf


def test_a_goodbye_follows_small_ones_at_once() -> None:
    a, b = connected()
    a.post(envelope(1))
    a.leave("done")
    frame = a.next_write()
    assert [one.call for one in b.received(frame)] == [1]
    assert frame.goodbye == "done"
    assert not is_pending(a)


def test_a_goodbye_waits_for_the_receipt_of_big_ones() -> None:
    a, b = connected()
    a.post(envelope(1, 2 * PIECE_BYTES))
    a.leave("done")
    a.post(envelope(2))
    assert is_pending(a)
    frame = a.next_write()
    b.received(frame)
    assert frame.goodbye is None
    assert not is_pending(a)
    for piece in pieces_of(a):
        take(b, piece)
    assert not is_pending(a)
    carry(b, a)
    assert is_pending(a)
    assert a.next_write().goodbye == "done"
    assert not is_pending(a)
    assert a.goodbye_written


def test_a_goodbye_that_waits_no_longer_overtakes_what_is_missing() -> None:
    """Its reader takes it without the rest, of which some was announced, and some was not."""
    a, b = connected()
    a.post(envelope(1, 2 * PIECE_BYTES))
    b.received(a.next_write())
    a.post(envelope(2))
    a.leave("done")
    a.leave("left early", now=True)
    assert is_pending(a)
    frame = a.next_write()
    assert frame.goodbye == "left early"
    assert b.received(frame) == []
    assert not is_pending(a)
    assert not a.cutting
    assert not a.flushed
    assert a.statistics().repeated == 0


def test_after_a_goodbye_that_overtook_the_next_carrier_brings_everything_first() -> None:
    a, b = connected()
    a.post(envelope(1))
    a.leave("left early", now=True)
    assert not a.next_write().envelopes
    a.connection_lost()
    b.connection_lost()
    a.connection_made(b.received_number)
    b.connection_made(a.received_number)
    frame = a.next_write()
    assert [one.call for one in b.received(frame)] == [1]
    assert frame.goodbye == "left early"


def test_a_goodbye_that_lacks_nothing_keeps_its_reason() -> None:
    """Be it due or written already."""
    a, _ = connected()
    a.post(envelope(1))
    a.next_write()
    a.leave("done")
    a.leave("left early", now=True)
    assert a.next_write().goodbye == "done"
    a.leave("left early", now=True)
    assert not is_pending(a)
    assert a.next_write().goodbye is None


@pytest.mark.parametrize(
    "frame",
    [
        Frame(receipt=1),
        Frame(envelopes=[Envelope("test.message", number=0)]),
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
    """Two ends, a control stream and two lanes; all break at any point and lose what is under way.

    A copy of a piece that was claimed is no part of that: it ends whenever it likes, or is given
    back whenever it likes.
    """

    @initialize()
    def start(self) -> None:
        self.ends = (Session(), Session())
        self.wires: tuple[list[bytes], list[bytes]] = ([], [])
        self.lanes: tuple[list[list[Piece]], list[list[Piece]]] = ([[], []], [[], []])
        self.copying: tuple[list[Copy], list[Copy]] = ([], [])
        self.broken: tuple[list[Copy], list[Copy]] = ([], [])
        self.posted: tuple[list[int], list[int]] = ([], [])
        self.got: tuple[list[int], list[int]] = ([], [])
        self.has_left = [False, False]
        self.has_left_early = False
        self.carry = [0, 0]  # the bytes of a piece that goes in a frame
        self.up = False

    side = st.integers(0, 1)
    lane = st.integers(0, 1)

    @rule(side=side, size=st.sampled_from([0, 0, 0, 1, 70_000, BIG, 2 * BIG]))
    def post(self, side: int, size: int) -> None:
        call = len(self.posted[side])
        self.ends[side].post(envelope(call, size))
        self.posted[side].append(call)

    @precondition(lambda self: self.up)
    @rule(side=side)
    def write(self, side: int) -> None:
        end = self.ends[side]
        pending, frame = end.pending, end.next_write(carry=self.carry[side])
        assert pending or not (frame.envelopes or frame.goodbye)
        assert not end.pending  # all of it has room in one write, but for pieces
        self.wires[side].append(pack_frame(frame))

    @rule(side=side)
    def leave(self, side: int) -> None:
        self.ends[side].leave("done")
        self.has_left[side] = True

    @rule(side=side)
    def leave_now(self, side: int) -> None:
        """What is missing then comes on a later carrier, or never."""
        self.ends[side].leave("left early", now=True)
        self.has_left[side] = self.has_left_early = True

    @precondition(lambda self: self.up)
    @rule(side=side)
    def receive(self, side: int) -> None:
        if self.wires[1 - side]:
            frame = unpack_frame(self.wires[1 - side].pop(0))
            self.hand_over(side, self.ends[side].received(frame))
            if frame.laneless:
                _, piece = read_chunk(frame.laneless)
                if (place := self.ends[side].claim(piece.span)) is not None:
                    self.copying[side].append((piece, place))

    @rule(side=side, carry=st.sampled_from([0, *STRIDES]))
    def go_without_lanes(self, side: int, carry: int) -> None:
        """Pieces that were cut for lanes may then travel in frames, and the other way round."""
        self.carry[side] = carry

    @precondition(lambda self: self.up)
    @rule(side=side, lane=lane, most=st.sampled_from(STRIDES))
    def load(self, side: int, lane: int, most: int) -> None:
        piece = self.ends[side].next_piece(most)
        assert piece is None or self.up
        if piece is not None:
            self.lanes[side][lane].append(piece)

    @precondition(lambda self: self.up)
    @rule(side=side, lane=lane, twice=st.booleans())
    def unload(self, side: int, lane: int, twice: bool) -> None:
        pieces, end = self.lanes[1 - side][lane], self.ends[side]
        if pieces and end.announced(pieces[0].number):
            piece = pieces.pop(0)
            for _ in range(1 + twice):
                if (place := end.claim(piece.span)) is not None:
                    self.copying[side].append((piece, place))

    @rule(side=side, which=st.integers(0, 5))
    def copy(self, side: int, which: int) -> None:
        if self.copying[side]:
            piece, place = self.copying[side].pop(which % len(self.copying[side]))
            self.hand_over(side, put(self.ends[side], piece, place))

    @rule(side=side, which=st.integers(0, 5))
    def give_back(self, side: int, which: int) -> None:
        """The lane of a claim broke before its bytes came; the next one may bring them already."""
        if self.broken[side]:
            piece, place = self.broken[side].pop(which % len(self.broken[side]))
            place[: len(place) // 2] = piece.data[: len(place) // 2]
            assembly = self.ends[side].settle(piece.span, came=False)
            if assembly is not None:
                assembly.join()
                self.hand_over(side, self.ends[side].finish(piece.number))

    @precondition(lambda self: self.up)
    @rule(broken=st.booleans())
    def lose_carrier(self, broken: bool) -> None:
        for side, end in enumerate(self.ends):
            if broken:
                self.broken[side].extend(self.copying[side])
                self.copying[side].clear()
            end.connection_lost()
            assert end.next_piece() is None
            self.wires[side].clear()
            for pieces in self.lanes[side]:
                pieces.clear()
        self.up = False

    @precondition(lambda self: not self.up)
    @rule()
    def connect(self) -> None:
        numbers = [end.received_number for end in self.ends]
        self.ends[0].connection_made(numbers[1])
        self.ends[1].connection_made(numbers[0])
        self.up = True

    def hand_over(self, side: int, complete: list[Envelope]) -> None:
        for got in complete:
            if got.buffers:
                assert set(bytes(got.buffers[0])) == {got.call % 256}
            self.got[side].append(got.call)

    @invariant()
    def at_most_once(self) -> None:
        for side in (0, 1):
            got = self.got[side]
            assert len(set(got)) == len(got)
            assert set(got) <= set(self.posted[1 - side])

    def teardown(self) -> None:
        """Once nothing breaks any more, everything arrives and every receipt comes back."""
        if self.up and self.has_left_early:
            self.lose_carrier(True)
        if not self.up:
            self.connect()
        for _ in range(1000):
            for side in (0, 1):
                self.write(side)
                while self.wires[side]:
                    self.receive(1 - side)
                for lane in (0, 1):
                    self.load(side, lane, PIECE_BYTES)
                    self.unload(1 - side, lane, False)
                while self.copying[side]:
                    self.copy(side, 0)
                while self.broken[side]:
                    self.give_back(side, 0)
            if all(end.flushed for end in self.ends):
                break
        for side in (0, 1):
            left = self.has_left[side] and not self.ends[side].goodbye_written
            assert self.ends[side].pending == left
            assert sorted(self.got[side]) == self.posted[1 - side]
            assert self.ends[side].flushed
            assert not self.ends[side].cutting


TestPromise = Promise.TestCase
TestPromise.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


@given(st.data(), st.lists(st.sampled_from([1, 70_000, PIECE_BYTES, BIG, 2 * BIG]), max_size=5))
@settings(max_examples=40)
def test_pieces_in_any_order_over_broken_streams(data: st.DataObject, sizes: list[int]) -> None:
    """Of several envelopes, over and over, some of them twice; the rest after each break."""
    a, b = connected()
    for call, size in enumerate(sizes):
        a.post(envelope(call, size))
    got: list[Envelope] = []
    for last in (False, False, True):
        got += carry(a, b)
        pieces = pieces_of(a, data.draw(st.sampled_from(STRIDES)))
        come = data.draw(st.permutations(pieces + pieces[: 0 if last else 2]))
        if not last:
            come = come[: data.draw(st.integers(0, len(come)))]
        for piece in come:
            got += take(b, piece)
        if not last:
            for end in (a, b):
                end.connection_lost()
            a.connection_made(b.received_number)
            b.connection_made(a.received_number)
    carry(b, a)
    assert sorted(one.call for one in got) == list(range(len(sizes)))
    for one in got:
        assert bytes(one.buffers[0]) == bytes([one.call]) * sizes[one.call]
    assert is_flushed(a)


@given(st.data(), st.lists(st.sampled_from([1, 70_000, BIG, 2 * BIG]), max_size=5))
@settings(max_examples=40)
def test_without_memory_each_comes_once_with_the_error(
    data: st.DataObject, sizes: list[int]
) -> None:
    """Also over broken streams, and while pieces of other parts are being copied."""

    def memory(kind: str, size: int) -> memoryview | None:
        if size == 70_000:
            raise MemoryError
        return None

    a, b = Session(), Session(memory=memory)
    a.connection_made(0)
    b.connection_made(0)
    for call, size in enumerate(sizes):
        a.post(replace(envelope(call, size), document=bytes([call]) * BIG))
    got, copying, some = carry(a, b), list[Copy](), st.integers(0, 1)
    for last in (False, True):
        pieces = pieces_of(a)
        come = data.draw(st.permutations(pieces + pieces[:2]))
        for piece in come if last else come[: data.draw(st.integers(0, len(come)))]:
            try:
                place = b.claim(piece.span)
            except MemoryError as error:
                got += b.give_up(piece.number, error)
                continue
            if place is not None:
                copying.append((piece, place))
            while copying and data.draw(some) == 1:
                got += put(b, *copying.pop(0))
        if not last:
            for end in (a, b):
                end.connection_lost()
            a.connection_made(b.received_number)
            b.connection_made(a.received_number)
            got += carry(a, b)
    for piece, place in copying:
        got += put(b, piece, place)
    carry(b, a)
    assert sorted(one.number for one in got) == list(range(1, len(sizes) + 1))
    for one in got:
        size = sizes[one.call]
        failed = size == 70_000
        assert (one.failure is not None) == failed
        if failed:
            assert "no memory for 70000 bytes of test.message" in str(one.failure)
            assert not one.buffers
        else:
            assert bytes(one.buffers[0]) == bytes([one.call]) * size
            assert one.document == bytes([one.call]) * BIG
    assert is_flushed(a)


@given(st.lists(st.sampled_from([0, 100, 60_000, BIG]), max_size=12), st.integers(1, 2**21))
@settings(max_examples=40)
def test_every_limit_carries_everything(sizes: list[int], limit: int) -> None:
    a, b = connected()
    for call, size in enumerate(sizes):
        a.post(envelope(call, size))
    got: list[int] = []
    while a.pending:
        got += [one.call for one in b.received(unpack_frame(pack_frame(a.next_write(limit))))]
    got += [one.call for piece in pieces_of(a) for one in take(b, piece)]
    assert sorted(got) == list(range(len(sizes)))
