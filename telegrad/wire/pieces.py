"""Pieces: the stretches into which big parts are cut, the chunks that carry them, and assemblies.

    chunk = sequence (8 bytes) | envelope (8) | part (4) | offset (8) | data

All numbers are big-endian. The sequence counts the chunks of one direction of one lane from 0.
Every part is cut at multiples of 16 KiB, into pieces of 1 MiB; or smaller ones on a slow link,
because a receiver reports its progress by the number of chunks, and a MiB may take minutes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.document import MAX_ENVELOPE_BYTES
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.frame import inline_parts, parts_of

PIECE_BYTES = 2**20  # a 64 MiB gRPC message moves at 0.3 GB/s, 1 MiB ones at 1.35
BLOCK_BYTES = 2**14  # a part may be cut at its multiples; at 56 kbit/s one takes two seconds

# Returns memory for one received buffer: the kind of its envelope, and its bytes.
BufferMemory: TypeAlias = Callable[[str, int], memoryview | None]

_HEADER: Final = struct.Struct(">QQIQ")
CHUNK_HEADER_BYTES: Final = _HEADER.size


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a piece.

    Attributes:
        number: The number of the envelope.
        part: The number of the part in the envelope.
        offset: The place of its first byte in the part; a multiple of 16 KiB.
        size: The number of bytes; a multiple of 16 KiB except at the part's end. Never 0.
    """

    number: int
    part: int
    offset: int
    size: int


@dataclass(slots=True)
class Piece:
    """A stretch of one part of an envelope.

    Attributes:
        number: The number of the envelope.
        part: The number of the part: 0 the document, 1 the externals, 2 the first buffer, ...
        offset: The place of its first byte in the part; a multiple of 16 KiB.
        data: Never empty; 1 MiB, or the rest of the part, or less on a slow link.
    """

    number: int
    part: int
    offset: int
    data: Buffer

    @property
    def span(self) -> Span:
        """The place of the piece."""
        return Span(self.number, self.part, self.offset, len(self.data))

    def split(self, size: int) -> tuple[Piece, Piece]:
        """Returns its first `size` bytes, and the rest; both are views.

        Args:
            size: A multiple of 16 KiB that is less than its size.
        """
        data = memoryview(self.data)
        rest = Piece(self.number, self.part, self.offset + size, data[size:])
        return Piece(self.number, self.part, self.offset, data[:size]), rest


def cut(envelope: Envelope, lent: Container[int] = ()) -> Iterator[Piece]:
    """Yields the pieces of all parts that do not travel in-line, in the order to send them.

    The pieces are views: no byte is copied, and the envelope must not change meanwhile.

    Args:
        envelope: The envelope.
        lent: The parts that lie in shared memory, which are not cut.
    """
    parts = zip(parts_of(envelope), inline_parts(envelope), strict=True)
    for part, (data, inline) in enumerate(parts):
        if not inline and part not in lent:
            view = memoryview(data).cast("B")
            for offset in range(0, len(view), PIECE_BYTES):
                yield Piece(envelope.number, part, offset, view[offset : offset + PIECE_BYTES])


def chunk_header(sequence: int, piece: Piece) -> bytes:
    """Returns the bytes before a piece's data on a lane.

    Args:
        sequence: The chunk's number on its lane, in its direction.
        piece: The piece that it carries.
    """
    return _HEADER.pack(sequence, piece.number, piece.part, piece.offset)


def pack_chunk(piece: Piece) -> bytes:
    """Returns a piece as a chunk that travels in a frame; copies its bytes."""
    return b"".join((chunk_header(0, piece), piece.data))


def read_chunk_header(header: Buffer, size: int) -> tuple[int, Span]:
    """Returns the sequence of a chunk and the place of its data, before the data has come.

    Args:
        header: The first bytes of the chunk.
        size: The size of the chunk, header included.

    Raises:
        DecodeError: The bytes are not the header of a chunk.
    """
    if not 0 < size - _HEADER.size <= PIECE_BYTES:
        raise DecodeError(f"not a chunk of a bulk lane ({size} bytes)")
    sequence, number, part, offset = _HEADER.unpack_from(header)
    if number == 0 or offset % BLOCK_BYTES:
        raise DecodeError(f"a chunk of no envelope, or off the grid: {number}, offset {offset}")
    return sequence, Span(number, part, offset, size - _HEADER.size)


# -- assemblies: the receiver puts big parts together from pieces that come in any order ---------
#
# A claim on a piece returns the place for its bytes. The claimer copies them there, in any thread;
# then the piece is placed, or given back if its bytes did not come. A piece may come again, and cut
# differently. While the first one is under way, its bytes are claimed twice, and the same bytes are
# written twice. Once all of a piece is in its place, it is not wanted any more. No byte is written
# after the assembly is complete, because completion waits for every claim.


@final
class _Part:
    """A part that is still to come, or is coming."""

    __slots__ = ("placed", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.placed = bytearray()  # a 1 for each block that has come; empty before the first
        self.view: memoryview | None = None


@final
class Assembly:
    """A received envelope that waits for pieces. Pure; not thread-safe.

    The memory for a part is taken as a whole when its first piece has come, and exactly as
    announced. The memory of a buffer belongs to the receiver from then on.

    Args:
        envelope: The envelope as `unpack_frame` returned it; `join` completes it.
        awaited: The parts to come and their sizes, `frame.awaited[envelope.number]`.
        most: The most bytes that they may have together.
        memory: Returns memory for a buffer of an envelope of some kind and so many bytes, or None
            for fresh memory.

    Attributes:
        envelope: The envelope.
        parts: The number of parts that were announced.

    Raises:
        DecodeError: The sizes are impossible.
    """

    __slots__ = ("_claimed", "_left", "_memory", "_parts", "envelope", "parts")

    def __init__(
        self,
        envelope: Envelope,
        awaited: Mapping[int, int],
        most: int = MAX_ENVELOPE_BYTES,
        memory: BufferMemory | None = None,
    ) -> None:
        if sum(awaited.values()) > most or min(awaited.values(), default=1) <= 0:
            raise DecodeError(f"parts of impossible sizes were announced: {dict(awaited)}")
        self.envelope = envelope
        self._parts = {part: _Part(size) for part, size in awaited.items()}
        self.parts = len(awaited)
        self._left = sum(map(_blocks, awaited.values()))
        self._claimed = 0  # claims under way
        self._memory = memory

    @property
    def left(self) -> int:
        """The number of blocks that are not in their place yet."""
        return self._left

    @property
    def complete(self) -> bool:
        """True if every byte is in its place, and no copy is under way."""
        return self._left == 0 and self._claimed == 0

    def claim(self, piece: Span) -> memoryview | None:
        """Returns the memory for the bytes of a piece; None if they are already there, or lent.

        Raises:
            DecodeError: The piece fits no part.
            MemoryError: There is no memory for its part; call `give_up`.
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

    def settle(self, piece: Span, *, came: bool) -> bool:
        """Ends a claim, whose bytes are in place if they came; returns True if all are now."""
        if came:
            placed, n = self._parts[piece.part].placed, _blocks(piece.size)
            first = piece.offset // BLOCK_BYTES
            self._left -= placed.count(0, first, first + n)
            placed[first : first + n] = b"\1" * n
        self._claimed -= 1
        return self.complete

    def join(self) -> Envelope:
        """Gives the envelope its parts, once all are complete; a big document is copied here.

        Raises:
            MemoryError: There is no memory for the copy; call `give_up`.
        """
        envelope = self.envelope
        buffers = list(envelope.buffers)
        for number, part in self._parts.items():
            assert part.view is not None
            if number == 0:
                envelope.document = self._copy(part.view)
            elif number == 1:
                envelope.externals = self._copy(part.view)
            else:
                buffers[number - 2] = part.view
        envelope.buffers = buffers
        self._parts = {}  # what comes again is known as there; nothing else has the memory
        return envelope

    def give_up(self, error: MemoryError) -> None:
        """Leaves the parts out of the envelope, as there is no memory for them."""
        self.envelope.failure, self.envelope.buffers = error, ()
        self._parts = {}

    def _is_lent(self, part: int) -> bool:
        """Returns True if a part came in shared memory; on another stream it may come once more."""
        if part < 2:
            return bool((self.envelope.document, self.envelope.externals)[part])
        buffers = self.envelope.buffers
        return part - 2 < len(buffers) and isinstance(buffers[part - 2], memoryview)

    def _take_memory(self, piece: Span, size: int) -> memoryview:
        with contextlib.suppress(MemoryError):
            if self._memory is not None and piece.part > 1:
                taken = self._memory(self.envelope.kind, size)
                if taken is not None:
                    return taken
            # np.empty touches no page before its bytes arrive; bytearray(n) would
            return np.empty(size, np.uint8).data
        raise self._no_memory(size)

    def _copy(self, view: memoryview) -> bytes:
        with contextlib.suppress(MemoryError):
            return bytes(view)
        raise self._no_memory(view.nbytes)

    def _no_memory(self, size: int) -> MemoryError:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        limited = limit != resource.RLIM_INFINITY
        told = f" (`ulimit -v` allows it {limit >> 20} MiB)" if limited else ""
        return MemoryError(
            f"the receiver, process {os.getpid()}, has no memory for {size} bytes of "
            f"{self.envelope.kind}{told}; send smaller arrays, or give it more memory"
        )

    def _error(self, piece: Span, why: str) -> DecodeError:
        where = f"bytes {piece.offset} to {piece.offset + piece.size} of part {piece.part}"
        return DecodeError(
            f"a piece of envelope {piece.number} ({self.envelope.kind}) does not fit: {where}; "
            f"{why}"
        )


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES)
