"""The pieces of one session that lanes load and unload."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

from telegrad.transport.channels.base import Pieces
from telegrad.transport.channels.bulk_thread import BulkThread, copy_into
from telegrad.wire import Assembly, Envelope, Piece, Span

__all__ = ["Cargo"]


@final
class Cargo:
    """The pieces of one session, under its lock. It outlives every lane.

    A piece that was claimed is placed, or given back, even if its lane has broken meanwhile.
    `store` is for the loop; lanes with threads of their own claim, place and give back.

    Args:
        session: The session.
        session_lock: The lock that guards the session.
        bulk: The thread that copies bytes.
        hand_over: Takes the envelopes that are complete.
        fail: Hears that an envelope could not be put together, for lack of memory.
    """

    def __init__(
        self,
        session: Pieces,
        session_lock: threading.Lock,
        bulk: BulkThread,
        hand_over: Callable[[Sequence[Envelope]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._session = session
        self._session_lock = session_lock
        self._bulk = bulk
        self._hand_over = hand_over
        self._fail = fail

    @property
    def waiting(self) -> bool:
        """True if there is a piece to send."""
        with self._session_lock:
            return self._session.pieces_waiting

    def next_piece(self, most: int) -> Piece | None:
        """Returns the next piece to send, of so many bytes at most; None if there is none."""
        with self._session_lock:
            return self._session.next_piece(most)

    def announced(self, number: int) -> bool:
        """Returns True if the envelope of a piece is known."""
        with self._session_lock:
            return self._session.announced(number)

    def store(self, piece: Piece) -> asyncio.Future[None] | None:
        """Copies a piece of an announced envelope to its place, in the bulk thread.

        Returns:
            A future that is done when the piece is in its place; None if it is not wanted any more.

        Raises:
            DecodeError: The piece does not fit the announcement.
        """
        span = piece.span
        place = self.claim(span)
        if place is None:
            return None
        copied = self._bulk.run(copy_into, place, piece.data)
        copied.add_done_callback(lambda done: self._placed(span, done))
        return copied

    def claim(self, span: Span) -> memoryview | None:
        """Returns the place of a piece of an announced envelope; None if it is not wanted.

        Raises:
            DecodeError: The piece does not fit the announcement.
        """
        with self._session_lock:
            return self._session.claim(span)

    def place(self, span: Span) -> None:
        """Records that a claimed piece is in place; hands over an envelope that is complete."""
        with self._session_lock:
            assembly = self._session.placed(span)
        self._join(span.number, assembly)

    def give_back(self, span: Span) -> None:
        """Records that a claimed piece did not come; hands over an envelope that is complete."""
        with self._session_lock:
            assembly = self._session.given_back(span)
        self._join(span.number, assembly)

    def _join(self, number: int, assembly: Assembly | None) -> None:
        if assembly is None:
            return
        try:
            assembly.join()
        except MemoryError as error:
            self._fail(error)
        else:
            self._finish(number)

    def _finish(self, number: int) -> None:
        with self._session_lock:
            complete = self._session.finish(number)
        self._hand_over(complete)

    def _placed(self, span: Span, copied: asyncio.Future[None]) -> None:
        if not self._is_done(copied):
            return
        with self._session_lock:
            assembly = self._session.placed(span)
        if assembly is not None:
            joined = self._bulk.run(assembly.join)
            joined.add_done_callback(lambda done: self._joined(span.number, done))

    def _joined(self, number: int, joined: asyncio.Future[Envelope]) -> None:
        if self._is_done(joined):
            self._finish(number)

    def _is_done(self, future: asyncio.Future[Any]) -> bool:
        if future.cancelled():  # the exchange is closed
            return False
        if (error := future.exception()) is not None:
            self._fail(error)
        return error is None
