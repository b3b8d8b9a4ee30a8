"""Big parts of envelopes, put together by the receiver from pieces that come in any order.

A piece is claimed, which says where its bytes belong; whoever claimed it copies them there, in
whatever thread; then it is placed. Of a piece that comes again only the first is ever claimed: no
byte of a part is written twice, and none once the part is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.envelope import Envelope
from telegrad.wire.limits import MAX_ENVELOPE_BYTES
from telegrad.wire.piece import PIECE_BYTES, Piece

__all__ = ["Assembly"]


@final
class _Part:
    """A part that is still to come, or comes."""

    __slots__ = ("claimed", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.claimed: set[int] | None = None  # the offsets of its pieces; none came while None
        self.view: memoryview | None = None


@final
class Assembly:
    """A received envelope that waits for pieces. Pure; not thread-safe.

    Memory for a part is taken whole when its first piece is there; what was announced, no more.

    Args:
        envelope: As `unpack_frame` returned it; `join` completes it.
        awaited: The parts to come and their sizes, `frame.awaited[envelope.number]`.
        most: Bytes that they may have together.

    Raises:
        DecodeError: The sizes cannot be.
    """

    __slots__ = ("_left", "_parts", "envelope")

    def __init__(
        self, envelope: Envelope, awaited: Mapping[int, int], most: int = MAX_ENVELOPE_BYTES
    ) -> None:
        if sum(awaited.values()) > most or min(awaited.values(), default=1) <= 0:
            raise DecodeError(f"parts of impossible sizes were announced: {dict(awaited)}")
        self.envelope = envelope
        self._parts = {part: _Part(size) for part, size in awaited.items()}
        self._left = sum(-(-size // PIECE_BYTES) for size in awaited.values())

    @property
    def parts(self) -> int:
        """How many parts were announced."""
        return len(self._parts)

    @property
    def left(self) -> int:
        """How many pieces are not in their place yet."""
        return self._left

    @property
    def complete(self) -> bool:
        """Whether every byte is in its place."""
        return self._left == 0

    def claim(self, piece: Piece) -> memoryview | None:
        """Returns where the bytes of a piece belong; None when it was claimed before.

        Raises:
            DecodeError: The piece belongs nowhere, or there is no memory for its part.
        """
        part = self._parts.get(piece.part)
        if part is None:
            raise self._error(piece, "no such part was announced")
        end = min(piece.offset + PIECE_BYTES, part.size)
        if piece.offset % PIECE_BYTES or piece.offset + len(piece.data) != end:
            raise self._error(piece, f"the part has {part.size} bytes")
        if part.claimed is None:
            part.claimed = set()
        if piece.offset in part.claimed:
            return None
        if part.view is None:
            part.view = self._take_memory(piece, part.size)
        part.claimed.add(piece.offset)
        return part.view[piece.offset : end]

    def placed(self) -> bool:
        """Hears that the bytes of a claimed piece are in place; returns whether all are now."""
        self._left -= 1
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

    def _take_memory(self, piece: Piece, size: int) -> memoryview:
        try:  # np.empty touches no page before its bytes arrive; bytearray(n) would
            return np.empty(size, np.uint8).data
        except MemoryError as error:
            raise self._error(piece, f"no memory for {size} bytes") from error

    def _error(self, piece: Piece, why: str) -> DecodeError:
        where = f"bytes {piece.offset} to {piece.offset + len(piece.data)} of part {piece.part}"
        return DecodeError(
            f"a piece of envelope {piece.number} ({self.envelope.kind}) does not fit: {where}; "
            f"{why}"
        )
