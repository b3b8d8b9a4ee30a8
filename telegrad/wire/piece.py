"""Pieces: the stretches into which big parts are cut, and the chunks that carry them on a lane.

    chunk = sequence (8 bytes) | envelope (8) | part (4) | offset (8) | data

All numbers big-endian. The sequence counts the chunks of one direction of one lane from 0. Every
part is cut at the multiples of 1 MiB, so that a piece is known by where it begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from telegrad.errors import DecodeError
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.frame import inline_parts, is_bare, parts_of

__all__ = ["PIECE_BYTES", "Piece", "chunk_header", "cut", "read_chunk"]

PIECE_BYTES = 2**20  # a 64 MiB gRPC message moves at 0.3 GB/s, 1 MiB ones at 1.35

_HEADER: Final = struct.Struct(">QQIQ")


@dataclass(slots=True)
class Piece:
    """A stretch of one part of an envelope.

    Attributes:
        number: Of which envelope.
        part: Of which of its parts: 0 the document, 1 the externals, 2 the first buffer, ...
        offset: Where in the part its first byte belongs; a multiple of 1 MiB.
        data: Never empty; 1 MiB, or what is left of the part.
    """

    number: int
    part: int
    offset: int
    data: Buffer


def cut(envelope: Envelope) -> Iterator[Piece]:
    """Yields the pieces of all parts that do not travel in-line, in the order to send them.

    The pieces are views: no byte is copied, and the envelope must not change meanwhile.
    """
    if is_bare(envelope):
        return
    parts = zip(parts_of(envelope), inline_parts(envelope), strict=True)
    for part, (data, inline) in enumerate(parts):
        if not inline:
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
    size = len(message) - _HEADER.size
    if not 0 < size <= PIECE_BYTES:
        raise DecodeError(f"not a chunk of a bulk lane ({len(message)} bytes)")
    sequence, number, part, offset = _HEADER.unpack_from(message)
    if number == 0 or offset % PIECE_BYTES:
        raise DecodeError(f"a chunk of no envelope, or off the grid: {number}, offset {offset}")
    return sequence, Piece(number, part, offset, memoryview(message)[_HEADER.size :])
