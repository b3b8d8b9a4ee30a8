"""Big parts of envelopes: cut into pieces by the sender, put together by the receiver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.envelope import Envelope
from telegrad.wire.frame import MAX_ENVELOPE_BYTES, Piece, inline_parts, parts_of

__all__ = ["PIECE_BYTES", "Assembly", "cut"]

PIECE_BYTES = 2**20  # a 64 MiB gRPC message moves at 0.3 GB/s, 1 MiB ones at 1.35


def cut(envelope: Envelope) -> Iterator[Piece]:
    """Yields the pieces of all parts that do not travel in-line, in the order to send them.

    The pieces are views: no byte is copied, and the envelope must not change meanwhile.
    """
    parts = zip(parts_of(envelope), inline_parts(envelope), strict=True)
    for part, (data, inline) in enumerate(parts):
        if not inline:
            view = memoryview(data).cast("B")
            for offset in range(0, len(view), PIECE_BYTES):
                chunk = view[offset : offset + PIECE_BYTES]
                yield Piece(envelope.number, part, offset, chunk)


@final
class Assembly:
    """A received envelope that waits for pieces. Pure; not thread-safe.

    Memory for a part is taken when its first piece is there, and never more than was announced.

    Args:
        envelope: As `unpack_frame` returned it; completed in place.
        awaited: The parts to come and their sizes, `frame.awaited[envelope.number]`.
    """

    __slots__ = ("_awaited", "_filled", "_views", "envelope")

    def __init__(self, envelope: Envelope, awaited: Mapping[int, int]) -> None:
        if sum(awaited.values()) > MAX_ENVELOPE_BYTES or min(awaited.values(), default=1) <= 0:
            raise DecodeError(f"parts of impossible sizes were announced: {dict(awaited)}")
        self.envelope = envelope
        self._awaited = dict(awaited)
        self._filled: dict[int, int] = {}
        self._views: dict[int, memoryview] = {}

    @property
    def complete(self) -> bool:
        """Whether the envelope has all its parts."""
        return not self._awaited

    def add(self, piece: Piece) -> bool:
        """Puts a piece where it belongs.

        Args:
            piece: The next one of its part; a piece that is there already is ignored.

        Returns:
            Whether the envelope is complete now.

        Raises:
            DecodeError: The piece belongs nowhere, leaves a gap, or reaches beyond its part.
        """
        size = self._awaited.get(piece.part)
        if size is None:
            if piece.part in self._filled:
                return self.complete
            raise self._error(piece, "no such part was announced")
        filled = self._filled.get(piece.part, 0)
        end = piece.offset + len(piece.data)
        if end <= filled:
            return False
        if piece.offset != filled or end > size:
            raise self._error(piece, f"{filled} of {size} bytes were here")
        self._view(piece, size)[filled:end] = piece.data
        self._filled[piece.part] = end
        if end == size:
            self._finish(piece.part)
        return self.complete

    def _view(self, piece: Piece, size: int) -> memoryview:
        if piece.part not in self._views:
            try:
                # np.empty touches no page before its bytes arrive; bytearray(n) would
                self._views[piece.part] = np.empty(size, np.uint8).data
            except MemoryError as error:
                raise self._error(piece, f"no memory for {size} bytes") from error
        return self._views[piece.part]

    def _finish(self, part: int) -> None:
        del self._awaited[part]
        view = self._views.pop(part)
        if part == 0:
            self.envelope.document = bytes(view)
        elif part == 1:
            self.envelope.externals = bytes(view)
        else:
            buffers = list(self.envelope.buffers)
            buffers[part - 2] = view
            self.envelope.buffers = buffers

    def _error(self, piece: Piece, why: str) -> DecodeError:
        where = f"bytes {piece.offset} to {piece.offset + len(piece.data)} of part {piece.part}"
        kind = self.envelope.kind
        return DecodeError(
            f"a piece of envelope {piece.number} ({kind}) does not fit: {where}; {why}"
        )
