"""Big parts of envelopes, put together by the receiver from pieces that come in any order.

A piece is claimed, which says where its bytes belong; whoever claimed it copies them there, in
whatever thread; then it is placed, or given back if its bytes did not come. A piece may come again,
and cut in another way: while the first is on its way its bytes are claimed twice, and the same are
written twice; once all of a piece is in its place it is not wanted. No byte is written once
everything is complete: that waits for every claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, final

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.copies import NO_MEMORY
from telegrad.wire.envelope import Envelope
from telegrad.wire.limits import MAX_ENVELOPE_BYTES
from telegrad.wire.piece import BLOCK_BYTES, PIECE_BYTES, Span

__all__ = ["Assembly"]

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
