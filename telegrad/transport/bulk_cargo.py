"""What lanes load and unload: the pieces of one session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

from telegrad.transport.bulk_thread import BulkThread, copy_into
from telegrad.transport.session import Session
from telegrad.wire import Envelope, Piece

__all__ = ["Cargo"]


@final
class Cargo:
    """The pieces of one session, under its lock; on the loop. It outlives every lane.

    What was claimed is placed even if its lane has broken meanwhile.

    Args:
        session: Whose.
        session_lock: What guards it.
        bulk: Where bytes are copied.
        hand_over: Takes the envelopes that are complete.
        fail: Hears that one could not be put together, for lack of memory.
    """

    def __init__(
        self,
        session: Session,
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

    def next_piece(self) -> Piece | None:
        """Returns what to send next, if there is anything."""
        with self._session_lock:
            return self._session.next_piece()

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
        with self._session_lock:
            place = self._session.claim(piece)
        if place is None:
            return None
        number = piece.number
        copied = self._bulk.run(copy_into, place, piece.data)
        copied.add_done_callback(lambda done: self._placed(number, done))
        return copied

    def _placed(self, number: int, copied: asyncio.Future[None]) -> None:
        if not self._is_done(copied):
            return
        with self._session_lock:
            assembly = self._session.placed(number)
        if assembly is not None:
            joined = self._bulk.run(assembly.join)
            joined.add_done_callback(lambda done: self._joined(number, done))

    def _joined(self, number: int, joined: asyncio.Future[Envelope]) -> None:
        if not self._is_done(joined):
            return
        with self._session_lock:
            complete = self._session.finish(number)
        self._hand_over(complete)

    def _is_done(self, future: asyncio.Future[Any]) -> bool:
        if future.cancelled():  # the exchange is closed
            return False
        if (error := future.exception()) is not None:
            self._fail(error)
        return error is None
