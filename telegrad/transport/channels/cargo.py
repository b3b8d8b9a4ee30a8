"""The pieces of one session that lanes load and unload."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import final

from telegrad.critical import critical
from telegrad.transport.channels.base import Pieces
from telegrad.wire import CHUNK_HEADER_BYTES, Envelope, Piece, Span, read_chunk_header


@final
class Cargo:
    """The pieces of one session, under its lock. It outlives every lane.

    A piece that was claimed is placed, or given back, even if its lane has broken meanwhile.

    Args:
        hand_over: Takes the envelopes that are complete, or for which there was no memory.
    """

    def __init__(
        self,
        session: Pieces,
        session_lock: threading.Lock,
        hand_over: Callable[[Sequence[Envelope]], None],
    ) -> None:
        self._session = session
        self._session_lock = session_lock
        self._hand_over = hand_over

    @property
    def waiting(self) -> bool:
        """True if there is a piece to send."""
        with critical.section, self._session_lock:
            return bool(self._session.cutting)

    def next_piece(self, most: int, wanted: Callable[[], bool]) -> Piece | None:
        """Returns the next piece to send; None if there is none.

        Args:
            most: The maximal bytes of the piece.
            wanted: Returns False once the lane was let go, which happens before the next stream is
                up: a slow thread of this lane must take no piece of that stream.
        """
        with critical.section, self._session_lock:
            return self._session.next_piece(most) if wanted() else None

    def put_in_place(self, chunk: bytes) -> int:
        """Takes a chunk that came in a frame; returns the bytes of its data.

        Raises:
            DecodeError: It is no chunk, or does not fit an announcement.
        """
        _, span = read_chunk_header(chunk, len(chunk))
        if (place := self.claim(span)) is not None:
            place[:] = memoryview(chunk)[CHUNK_HEADER_BYTES:]
            del place  # a function that returns the array may find that nobody else has it
            self.settle(span, came=True)
        return span.size

    def announced(self, number: int) -> bool:
        """Returns True if the envelope of a piece is known."""
        with critical.section, self._session_lock:
            return self._session.announced(number)

    def claim(self, span: Span) -> memoryview | None:
        """Returns the place of a piece of an announced envelope; None if it is not wanted.

        An envelope for which there is no memory is handed over at once, with the error.

        Raises:
            DecodeError: The piece does not fit the announcement.
        """
        with critical.section, self._session_lock:
            try:
                return self._session.claim(span)
            except MemoryError as error:
                complete = self._session.give_up(span.number, error)
        self._hand_over(complete)
        return None

    def settle(self, span: Span, *, came: bool) -> None:
        """Ends the claim of a piece that came, or did not; hands over what is complete."""
        with critical.section, self._session_lock:
            assembly = self._session.settle(span, came=came)
        if assembly is None:
            return
        failure: MemoryError | None = None
        try:
            assembly.join()
        except MemoryError as error:
            failure = error
        with critical.section, self._session_lock:
            if failure is None:
                complete = self._session.finish(span.number)
            else:
                complete = self._session.give_up(span.number, failure)
        self._hand_over(complete)
