"""Frames arrive as they were; small parts travel in-line, the others are announced."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import strategies as st

from telegrad import pb
from telegrad.errors import DecodeError
from telegrad.wire import (
    INLINE_BYTES,
    PIECE_BYTES,
    Assembly,
    Envelope,
    Frame,
    Heartbeat,
    Lending,
    Lent,
    chunk_header,
    cut,
    inline_parts,
    measure,
    pack_frame,
    unpack_frame,
)
from telegrad.wire.lending import pack_lending
from tests.repeated import on_examples
from tests.wire.chunks import read_chunk
from tests.wire.heads import frame_of

numbers = st.integers(1, 2**64 - 1)
times = st.floats(0, 1e9)
envelopes = st.builds(
    Envelope,
    kind=st.text(min_size=1, max_size=20),
    call=st.integers(0, 2**64 - 1),
    reply=st.booleans(),
    time_left=st.floats(1e-6, 1e9) | st.just(math.inf),
    depth=st.integers(0, 2**32 - 1),
    document=st.binary(),
    externals=st.binary(),
    headers=st.dictionaries(st.text(), st.binary()),
    buffers=st.lists(st.binary().map(bytearray)),
    number=numbers,
)
frames = st.builds(
    Frame,
    envelopes=st.lists(envelopes),
    receipt=st.integers(0, 2**64 - 1),
    heartbeat=st.none()
    | st.builds(
        Heartbeat, times, times, times, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
    ),
    goodbye=st.none() | st.text(),
    laneless=st.none() | st.binary(),
)


@on_examples(frames)
def test_frames_arrive_as_they_were(frame: Frame) -> None:
    assert unpack_frame(pack_frame(frame)) == frame


def test_big_parts_come_as_pieces_and_many_small_ones_too() -> None:
    big: Any = np.arange(PIECE_BYTES // 4, dtype=np.float64)
    buffers: list[Any] = [big.data, b"small", b"", *[bytes(INLINE_BYTES)] * 6]
    envelope = Envelope("k", document=bytes(100_000), externals=b"e", buffers=buffers, number=3)
    assert inline_parts(envelope) == [
        False,
        True,
        False,
        True,
        True,
        True,
        True,
        True,
        *[False] * 3,
    ]
    assert 3 * INLINE_BYTES < measure(envelope)[0] < 4 * INLINE_BYTES
    frame = unpack_frame(pack_frame(Frame([envelope])))
    assert frame.awaited[3].keys() == {0, 2, 8, 9, 10}
    assembly = Assembly(frame.envelopes[0], frame.awaited[3])
    for piece in cut(envelope):
        sequence, arrived = read_chunk(chunk_header(7, piece) + bytes(piece.data))
        assert sequence == 7
        assert arrived == piece
        place = assembly.claim(arrived.span)
        assert place is not None
        place[:] = arrived.data
        assembly.settle(arrived.span, came=True)
    assert assembly.complete
    received = assembly.join()
    assert received.document == envelope.document
    assert [bytes(each) for each in received.buffers] == [bytes(each) for each in buffers]


LENDING = Lending([(4, 2**24), (5, 2**17)], {3: {2: Lent(1, 4, 0, 2**17)}}, [7, 2**40], [1])


def lends(lending: Lending, number: int = 3) -> Frame:
    buffers: list[Any] = [bytes(2**17), b"small", bytes(2**16 + 1)]
    return Frame([Envelope("k", buffers=buffers, number=number)], lending=lending)


def test_what_is_lent_is_not_awaited() -> None:
    frame = unpack_frame(pack_frame(lends(LENDING)))
    assert frame.lending == LENDING
    assert frame.awaited == {3: {4: 2**16 + 1}}
    both = {2: LENDING.lent[3][2], 4: Lent(2, 5, 0, 2**16 + 1)}
    assert unpack_frame(pack_frame(lends(Lending(lent={3: both})))).awaited == {}


def test_a_piece_of_what_is_lent_is_not_wanted() -> None:
    """It comes when the envelope is sent again on another stream."""
    frame = lends(LENDING)
    received = unpack_frame(pack_frame(frame))
    envelope = received.envelopes[0]
    place = memoryview(bytearray(2**17))
    envelope.buffers = [place, *envelope.buffers[1:]]
    assembly = Assembly(envelope, received.awaited[3])
    for piece in cut(frame.envelopes[0]):
        wanted = assembly.claim(piece.span)
        assert (wanted is None) == (piece.part == 2)
        if wanted is not None:
            assembly.settle(piece.span, came=True)
    assert assembly.complete
    assert assembly.join().buffers[0] is place
    assert [piece.part for piece in cut(frame.envelopes[0], lent=(2,))] == [4]


@pytest.mark.parametrize(
    "lent",
    [
        {3: {3: Lent(1, 4, 0, 5)}},  # it travels in-line
        {3: {5: Lent(1, 4, 0, 5)}},
        {3: {1: Lent(1, 4, 0, 5)}},
        {4: {2: Lent(1, 4, 0, 5)}},
    ],
)
def test_what_was_not_announced_cannot_be_lent(lent: dict[int, dict[int, Lent]]) -> None:
    packed = pb.Frame.FromString(pack_frame(lends(Lending())))
    pack_lending(packed.lending, Lending(lent=lent))
    with pytest.raises(DecodeError, match="no part that an envelope of this frame announces"):
        unpack_frame(packed.SerializeToString())


def test_lists_of_different_lengths_say_nothing() -> None:
    for field in ("slabs", "slab_sizes", "envelopes", "parts", "loans", "lenders", "offsets"):
        packed = pb.Frame(head=msgpack.packb([0]))
        getattr(packed.lending, field).append(1)
        with pytest.raises(DecodeError, match="do not fit"):
            unpack_frame(packed.SerializeToString())


def test_received_buffers_are_writable_and_ones_own() -> None:
    (received,) = unpack_frame(pack_frame(Frame([Envelope("k", buffers=[b"abc"])]))).envelopes
    assert isinstance(received.buffers[0], bytearray)


def test_a_deadline_that_has_passed_is_still_a_deadline() -> None:
    (received,) = unpack_frame(pack_frame(Frame([Envelope("k", time_left=-3.0)]))).envelopes
    assert 0 < received.time_left < 1e-6


REST: list[Any] = [0, False, 0, 0, b"", b"", 0, 0]  # of an envelope, behind its kind


@pytest.mark.parametrize("kind", ["", "x" * 101])
def test_an_envelope_without_a_kind_or_with_a_long_one_is_no_envelope(kind: str) -> None:
    with pytest.raises(DecodeError, match="an envelope of kind"):
        unpack_frame(frame_of([0, 1, kind, *REST]))


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        *itertools.product((0, 1, 3, 6, 9, 10), (-1, 0.5, "1", b"1", None, [1])),
        *itertools.product((2,), (1, b"a", None, ["a"])),
        *itertools.product((4,), (1, 0, None, "yes")),
        *itertools.product((5,), (-1.0, math.nan, math.inf, "1", None)),
        *itertools.product((7, 8), (-1, 0, 0.5, "a\n" * 3000, None, [b""])),
        (6, 2**32),
        (1, True),
        (9, 1),
        (10, 1),
        (10, 2**63),
    ],
)
@pytest.mark.parametrize("size", [0, 300])
def test_each_field_has_a_type_and_bounds(place: int, wrong: object, size: int) -> None:
    """In heads of either size, as they are read in different ways."""
    items = [5, 1, "a", *REST]
    items[7] = bytes(size)
    assert unpack_frame(frame_of(items)).receipt == 5
    items[place] = wrong
    with pytest.raises(DecodeError) as caught:
        unpack_frame(frame_of(items))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("size", [0, 300])
def test_a_head_holds_what_it_announces(size: int) -> None:
    items = [5, 1, "a", *REST, 2, "a", 7, False, 0, 0, bytes(size), b"", 1, 2, 1, 0, "name", b"v"]
    (_, envelope) = unpack_frame(frame_of(items, b"x")).envelopes
    assert (envelope.headers, [*map(bytes, envelope.buffers)]) == ({"name": b"v"}, [b"x", b""])
    for wrong, raw in ((items, b""), (items, b"xy"), ([*items, 3], b"x"), (items[:-1], b"x"),
                       (items[:-3], b"x"), (items[:14], b""), ([], b""), ([], b"x"), ([*items[:-1], "v"], b"x"),
                       ([*items[:-2], 1, b"v"], b"x")):  # fmt: skip
        with pytest.raises(DecodeError):
            unpack_frame(frame_of(wrong, raw))
    head = msgpack.packb(items)
    for wrong_head in (
        b"",
        b"\x01",
        b"\x80",
        msgpack.packb({0: 5}),
        head[:-1],
        head + b"\x01",
        b"\xc1",
    ):
        with pytest.raises(DecodeError):
            unpack_frame(pb.Frame(head=wrong_head, raw=b"x").SerializeToString())


def test_an_envelope_goes_whole_up_to_the_bound() -> None:
    """One byte more, and its buffer is announced and comes in pieces."""
    for more in (0, 1):
        envelope = Envelope("k", 1, document=b"d", buffers=[bytes(INLINE_BYTES + more)], number=1)
        _, whole = measure(envelope)
        assert whole is not bool(more)


@pytest.mark.parametrize("buffers", [(), (b"x",), (b"y" * 200,)])
def test_heads_of_every_length_around_those_that_are_written_otherwise(buffers: Any) -> None:
    sizes = [*range(90, 135), *range(220, 260), *range(2**14 - 60, 2**14)]
    for size in sizes:
        frame = Frame([Envelope("k", document=bytes(size), buffers=[*buffers], number=1)], 7)
        data = pack_frame(frame)
        assert pb.Frame.FromString(data).SerializeToString() == data
        assert unpack_frame(data) == frame
