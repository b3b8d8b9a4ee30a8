"""Pieces: the stretches into which big parts are cut, and the chunks that carry them on a lane.

    chunk = sequence (8 bytes) | envelope (8) | part (4) | offset (8) | data

All numbers big-endian. The sequence counts the chunks of one direction of one lane from 0. Every
part is cut at multiples of 16 KiB, into pieces of 1 MiB, or less where a link is slow: a receiver says
how far it is by the number of chunks, and a MiB may take minutes.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

from telegrad.errors import DecodeError
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.frame import inline_parts, parts_of

__all__ = [
    "BLOCK_BYTES",
    "CHUNK_HEADER_BYTES",
    "PIECE_BYTES",
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
