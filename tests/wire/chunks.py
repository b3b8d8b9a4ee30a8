"""Reads chunks of bulk lanes whole, as tests have them."""

from __future__ import annotations

from telegrad.wire import CHUNK_HEADER_BYTES, Piece, read_chunk_header


def read_chunk(message: bytes) -> tuple[int, Piece]:
    """Returns the sequence and the piece of a chunk."""
    sequence, span = read_chunk_header(message, len(message))
    data = memoryview(message)[CHUNK_HEADER_BYTES:]
    return sequence, Piece(span.number, span.part, span.offset, data)
