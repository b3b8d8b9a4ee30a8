"""Writes the messages of a burst together.

A thread that posts one message after the other would write each, and wake the other end for each.
What it posts as the fourth in a row and later waits until somebody writes all of it: a thread that
comes to wait, the thread that posts, now and then (`Connection.post`), or the loop half a millisecond
later. Where the interpreter's lock is held by the thread that posts, the loop comes too late.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import final

from telegrad.transport.loop import LoopThread

__all__ = ["BURSTS", "BurstWriter"]

BURST_SECONDS = 50e-6  # a message so soon after the one before belongs to a burst
# So many in a row of that kind are a burst. Whoever sends three calls and does not wait for their
# replies has each written at once.
BURSTS = 4
WRITE_SECONDS = 0.0005  # after which a burst is written, if its thread does something else


@final
class BurstWriter:
    """What waits to be written together, for all direct sockets of an exchange.

    Its state has no lock: a post that is counted wrongly is written sooner, or half a millisecond later.

    Args:
        loop: The loop that writes what nobody else has written.

    Attributes:
        waiting: What writes each of the streams; empty where nothing waits.
    """

    def __init__(self, loop: LoopThread) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._loop = loop
        self._last_post = 0.0
        self._in_a_row = 0  # posts that came soon after the one before
        self._write_due = False  # on the loop

    def takes(self, write: Callable[[], None]) -> bool:
        """Hears that a stream has something to write; tells whether that waits for others.

        What the loop posts does not wait.

        Args:
            write: Writes it; called once, in any thread, if this returned True.
        """
        now = time.monotonic()
        soon = now - self._last_post < BURST_SECONDS
        self._last_post = now
        self._in_a_row = self._in_a_row + 1 if soon else 0
        if self._in_a_row < BURSTS or self._loop.is_loop_thread():
            return False
        self.waiting.append(write)
        if not self._write_due:
            self._write_due = True
            self._loop.call_soon(self._write_soon)
        return True

    def write(self) -> None:
        """Writes what waits; from any thread."""
        while self.waiting:
            try:
                write = self.waiting.popleft()
            except IndexError:  # another thread was as quick
                return
            write()
            self._last_post = time.monotonic()  # the burst goes on with what is posted now

    def _write_soon(self) -> None:
        self._loop.loop.call_later(WRITE_SECONDS, self._write_late)

    def _write_late(self) -> None:
        self._write_due = False  # first: what comes after this is due anew
        self.write()
