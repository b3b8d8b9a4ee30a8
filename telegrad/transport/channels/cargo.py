"""What lanes load and unload: the pieces of one session."""

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

    What was claimed is placed, or given back, even if its lane has broken meanwhile. `store` is for
    the loop; threads of their own claim, place and give back.

    Args:
        session: Whose.
        session_lock: What guards it.
        bulk: Where bytes are copied.
        hand_over: Takes the envelopes that are complete.
        fail: Hears that one could not be put together, for lack of memory.
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
        """Whether there is a piece to send."""
        with self._session_lock:
            return self._session.pieces_waiting

    def next_piece(self, most: int) -> Piece | None:
        """Returns what to send next, if there is anything: so many bytes at most."""
        with self._session_lock:
            return self._session.next_piece(most)

    def announced(self, number: int) -> bool:
        """Returns whether the envelope of a piece is known."""
        with self._session_lock:
            return self._session.announced(number)

    def store(self, piece: Piece) -> asyncio.Future[None] | None:
        """Has a piece of an announced envelope copied to its place.

        Returns:
            What is done when it is there; None when it is not wanted any more.

        Raises:
            DecodeError: It does not fit what was announced.
        """
        span = piece.span
        place = self.claim(span)
        if place is None:
            return None
        copied = self._bulk.run(copy_into, place, piece.data)
        copied.add_done_callback(lambda done: self._placed(span, done))
        return copied

    def claim(self, span: Span) -> memoryview | None:
        """Returns where a piece of an announced envelope belongs; None when it is not wanted.

        Raises:
            DecodeError: It does not fit what was announced.
        """
        with self._session_lock:
            return self._session.claim(span)

    def place(self, span: Span) -> None:
        """Hears that a claimed piece is in its place; hands over what is complete by that."""
        with self._session_lock:
            assembly = self._session.placed(span)
        self._join(span.number, assembly)

    def give_back(self, span: Span) -> None:
        """Hears that a claimed piece did not come; hands over what is complete by that."""
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
