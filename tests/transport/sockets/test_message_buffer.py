"""Messages come out of a stream as they went in, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from telegrad.transport.base import CarrierClosedError
from telegrad.transport.sockets.message_buffer import LARGEST, ROOM, MessageBuffer
from tests.repeated import on_examples
from tests.transport.socket_pairs import header_of

SIZES = st.one_of(
    st.integers(0, 40), st.integers(ROOM - 12, ROOM + 12), st.integers(2 * ROOM, 2 * ROOM + 9)
)


def fill(buffer: MessageBuffer, data: bytes | memoryview, most: int) -> tuple[int, bytes | None]:
    """Puts as much as there is room for; returns how much that was, and the next message."""
    with buffer.space[:] as space:
        assert len(space) > 0
        size = min(len(space), len(data), most)
        space[:size] = data[:size]
    return size, buffer.take(size)


@on_examples(
    st.lists(SIZES, max_size=8), st.lists(st.integers(1, 2 * ROOM), min_size=1, max_size=20)
)
def test_messages_survive_any_cut(sizes: list[int], cuts: list[int]) -> None:
    sent = [bytes([65 + place]) * size for place, size in enumerate(sizes)]
    stream = memoryview(b"".join(header_of(message) + message for message in sent))
    buffer, got, at, turn = MessageBuffer(), [], 0, 0
    while at < len(stream):
        size, message = fill(buffer, stream[at:], cuts[turn % len(cuts)])
        while message is not None:
            got.append(message)
            message = buffer.take()
        at += size
        turn += 1
    assert got == sent
    assert buffer.start == buffer.end


def test_what_is_left_behind_a_message_is_known() -> None:
    buffer = MessageBuffer()
    assert fill(buffer, header_of(b"a") + b"a" + header_of(b"b") + b"b", 99)[1] == b"a"
    assert buffer.start < buffer.end
    assert buffer.take() == b"b"
    assert buffer.start == buffer.end


def test_a_length_that_no_message_has() -> None:
    buffer = MessageBuffer()
    with pytest.raises(CarrierClosedError, match=f"{LARGEST + 1} bytes"):
        fill(buffer, (LARGEST + 1).to_bytes(4, "big"), 4)
