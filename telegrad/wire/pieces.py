"""Pieces: the stretches into which big parts are cut, and the chunks that carry them on a lane.

    chunk = sequence (8 bytes) | envelope (8) | part (4) | offset (8) | data

All numbers big-endian. The sequence counts the chunks of one direction of one lane from 0. Every
part is cut at multiples of 16 KiB, into pieces of 1 MiB, or less where a link is slow: a receiver says
how far it is by the number of chunks, and a MiB may take minutes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.document import MAX_ENVELOPE_BYTES
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.frame import inline_parts, parts_of
from telegrad.wire.memory import NO_MEMORY

__all__ = [
    "BLOCK_BYTES",
    "CHUNK_HEADER_BYTES",
    "PIECE_BYTES",
    "Assembly",
    "Piece",
    "Span",
    "chunk_header",
    "cut",
    "read_chunk",
    "read_chunk_header",
]


PIECE_BYTES = 2**20  # a 64 MiB gRPC message moves at 0.3 GB/s, 1 MiB ones at 1.35
BLOCK_BYTES = 2**14  # where a part may be cut; at 56 kbit/s it takes two seconds

_HEADER: Final = struct.Struct(">QQIQ")
CHUNK_HEADER_BYTES: Final = _HEADER.size


@dataclass(frozen=True, slots=True)
class Span:
    """Where a piece belongs.

    Attributes:
        number: Of which envelope.
        part: Of which of its parts.
        offset: Where in the part its first byte belongs; a multiple of 16 KiB.
        size: How many bytes; such a multiple, too, but at the part's end. Never 0.
    """

    number: int
    part: int
    offset: int
    size: int


@dataclass(slots=True)
class Piece:
    """A stretch of one part of an envelope.

    Attributes:
        number: Of which envelope.
        part: Of which of its parts: 0 the document, 1 the externals, 2 the first buffer, ...
        offset: Where in the part its first byte belongs; a multiple of 16 KiB.
        data: Never empty; 1 MiB, or what is left of the part, or as much of it as goes at once.
    """

    number: int
    part: int
    offset: int
    data: Buffer

    @property
    def span(self) -> Span:
        """Where it belongs."""
        return Span(self.number, self.part, self.offset, len(self.data))

    def split(self, size: int) -> tuple[Piece, Piece]:
        """Returns its first bytes, so many, and the others; both are views.

        Args:
            size: A multiple of 16 KiB that is less than it has.
        """
        data = memoryview(self.data)
        rest = Piece(self.number, self.part, self.offset + size, data[size:])
        return Piece(self.number, self.part, self.offset, data[:size]), rest


def cut(envelope: Envelope, lent: Container[int] = ()) -> Iterator[Piece]:
    """Yields the pieces of all parts that do not travel in-line, in the order to send them.

    The pieces are views: no byte is copied, and the envelope must not change meanwhile.

    Args:
        envelope: What is cut.
        lent: Parts that travel otherwise.
    """
    parts = zip(parts_of(envelope), inline_parts(envelope), strict=True)
    for part, (data, inline) in enumerate(parts):
        if not inline and part not in lent:
            view = memoryview(data).cast("B")
            for offset in range(0, len(view), PIECE_BYTES):
                yield Piece(envelope.number, part, offset, view[offset : offset + PIECE_BYTES])


def chunk_header(sequence: int, piece: Piece) -> bytes:
    """Returns what stands before a piece's data on a lane.

    Args:
        sequence: The chunk's place among those of its lane and direction.
        piece: What it carries.
    """
    return _HEADER.pack(sequence, piece.number, piece.part, piece.offset)


def read_chunk(message: bytes) -> tuple[int, Piece]:
    """Returns the sequence and the piece of a chunk; its data is a view, no byte is copied.

    Raises:
        DecodeError: It is none.
    """
    sequence, span = read_chunk_header(message, len(message))
    data = memoryview(message)[_HEADER.size :]
    return sequence, Piece(span.number, span.part, span.offset, data)


def read_chunk_header(header: Buffer, size: int) -> tuple[int, Span]:
    """Returns the sequence of a chunk, and where its data belongs, before that is there.

    Args:
        header: What the chunk begins with.
        size: Of the chunk, its header included.

    Raises:
        DecodeError: It is none.
    """
    if not 0 < size - _HEADER.size <= PIECE_BYTES:
        raise DecodeError(f"not a chunk of a bulk lane ({size} bytes)")
    sequence, number, part, offset = _HEADER.unpack_from(header)
    if number == 0 or offset % BLOCK_BYTES:
        raise DecodeError(f"a chunk of no envelope, or off the grid: {number}, offset {offset}")
    return sequence, Span(number, part, offset, size - _HEADER.size)


# -- big parts of envelopes, put together by the receiver from pieces that come in any order -----
#
# A piece is claimed, which says where its bytes belong; whoever claimed it copies them there, in
# whatever thread; then it is placed, or given back if its bytes did not come. A piece may come again,
# and cut in another way: while the first is on its way its bytes are claimed twice, and the same are
# written twice; once all of a piece is in its place it is not wanted. No byte is written once
# everything is complete: that waits for every claim.

Take: TypeAlias = Callable[[int], memoryview | None]


@final
class _Part:
    """A part that is still to come, or comes."""

    __slots__ = ("placed", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.placed = bytearray()  # a 1 for each block that is there; empty before the first
        self.view: memoryview | None = None


@final
class Assembly:
    """A received envelope that waits for pieces. Pure; not thread-safe.

    Memory for a part is taken whole when its first piece is there; what was announced, no more. A
    buffer's is the receiver's from then on.

    Args:
        envelope: As `unpack_frame` returned it; `join` completes it.
        awaited: The parts to come and their sizes, `frame.awaited[envelope.number]`.
        most: Bytes that they may have together.
        take: Returns memory of so many bytes for a buffer, or None; else it is fresh.

    Raises:
        DecodeError: The sizes cannot be.
    """

    __slots__ = ("_claimed", "_left", "_parts", "_take", "envelope")

    def __init__(
        self,
        envelope: Envelope,
        awaited: Mapping[int, int],
        most: int = MAX_ENVELOPE_BYTES,
        take: Take = NO_MEMORY.take,
    ) -> None:
        if sum(awaited.values()) > most or min(awaited.values(), default=1) <= 0:
            raise DecodeError(f"parts of impossible sizes were announced: {dict(awaited)}")
        self.envelope = envelope
        self._parts = {part: _Part(size) for part, size in awaited.items()}
        self._left = sum(map(_blocks, awaited.values()))
        self._claimed = 0  # claims under way
        self._take = take

    @property
    def parts(self) -> int:
        """How many parts were announced."""
        return len(self._parts)

    @property
    def left(self) -> int:
        """How many blocks are not in their place yet."""
        return self._left

    @property
    def complete(self) -> bool:
        """Whether every byte is in its place, and nobody writes any more."""
        return self._left == 0 and self._claimed == 0

    def claim(self, piece: Span) -> memoryview | None:
        """Returns where the bytes of a piece belong; None when they are there, or lent.

        Raises:
            DecodeError: The piece belongs nowhere, or there is no memory for its part.
        """
        part = self._parts.get(piece.part)
        if part is None:
            if self._is_lent(piece.part):
                return None
            raise self._error(piece, "no such part was announced")
        end = piece.offset + piece.size
        ends = end == part.size or (end < part.size and end % BLOCK_BYTES == 0)
        if piece.offset % BLOCK_BYTES or not ends or not 0 < piece.size <= PIECE_BYTES:
            raise self._error(piece, f"the part has {part.size} bytes")
        if part.view is None:
            part.view = self._take_memory(piece, part.size)
            part.placed = bytearray(_blocks(part.size))
        first = piece.offset // BLOCK_BYTES
        if not part.placed.count(0, first, first + _blocks(piece.size)):
            return None
        self._claimed += 1
        return part.view[piece.offset : end]

    def placed(self, piece: Span) -> bool:
        """Hears that the bytes of a claimed piece are in place; returns whether all are now."""
        placed, n = self._parts[piece.part].placed, _blocks(piece.size)
        first = piece.offset // BLOCK_BYTES
        self._left -= placed.count(0, first, first + n)
        placed[first : first + n] = b"\1" * n
        self._claimed -= 1
        return self.complete

    def given_back(self) -> bool:
        """Hears that the bytes of a claimed piece did not come; returns whether all are in place."""
        self._claimed -= 1
        return self.complete

    def join(self) -> Envelope:
        """Gives the envelope its parts, once all are complete; a big document is copied here."""
        envelope = self.envelope
        buffers = list(envelope.buffers)
        for number, part in self._parts.items():
            assert part.view is not None
            if number == 0:
                envelope.document = bytes(part.view)
            elif number == 1:
                envelope.externals = bytes(part.view)
            else:
                buffers[number - 2] = part.view
        envelope.buffers = buffers
        return envelope

    def _is_lent(self, part: int) -> bool:
        """Whether a part came in shared memory; on another stream it may come once more."""
        if part < 2:
            return bool((self.envelope.document, self.envelope.externals)[part])
        buffers = self.envelope.buffers
        return part - 2 < len(buffers) and isinstance(buffers[part - 2], memoryview)

    def _take_memory(self, piece: Span, size: int) -> memoryview:
        try:  # np.empty touches no page before its bytes arrive; bytearray(n) would
            room = self._take(size)
            return np.empty(size, np.uint8).data if room is None else room
        except MemoryError as error:
            raise self._error(piece, f"no memory for {size} bytes") from error

    def _error(self, piece: Span, why: str) -> DecodeError:
        where = f"bytes {piece.offset} to {piece.offset + piece.size} of part {piece.part}"
        return DecodeError(
            f"a piece of envelope {piece.number} ({self.envelope.kind}) does not fit: {where}; "
            f"{why}"
        )


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES)
