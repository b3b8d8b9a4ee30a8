"""Frames arrive as they were; small parts travel in-line, the others are announced."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from telegrad.wire import (
    INLINE_BYTES,
    PIECE_BYTES,
    Assembly,
    Envelope,
    Frame,
    Goodbye,
    Heartbeat,
    chunk_header,
    cut,
    inline_parts,
    inline_size,
    pack_frame,
    read_chunk,
    unpack_frame,
)

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
    goodbye=st.none() | st.builds(Goodbye, st.text()),
)


@given(frames)
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
    assert 3 * INLINE_BYTES < inline_size(envelope) < 4 * INLINE_BYTES
    frame = unpack_frame(pack_frame(Frame([envelope])))
    assert frame.awaited[3].keys() == {0, 2, 8, 9, 10}
    assembly = Assembly(frame.envelopes[0], frame.awaited[3])
    for piece in cut(envelope):
        sequence, arrived = read_chunk(chunk_header(7, piece) + bytes(piece.data))
        assert sequence == 7
        assert arrived == piece
        place = assembly.claim(arrived)
        assert place is not None
        place[:] = arrived.data
        assembly.placed()
    assert assembly.complete
    received = assembly.join()
    assert received.document == envelope.document
    assert [bytes(each) for each in received.buffers] == [bytes(each) for each in buffers]


def test_received_buffers_are_writable_and_ones_own() -> None:
    (received,) = unpack_frame(pack_frame(Frame([Envelope("k", buffers=[b"abc"])]))).envelopes
    assert isinstance(received.buffers[0], bytearray)


def test_a_deadline_that_has_passed_is_still_a_deadline() -> None:
    (received,) = unpack_frame(pack_frame(Frame([Envelope("k", time_left=-3.0)]))).envelopes
    assert 0 < received.time_left < 1e-6
