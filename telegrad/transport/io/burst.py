"""Writes the messages of a burst together.

A thread that posts one message after the other would write each, and wake the other end for each.
From its fourth message in a row on, messages wait until a thread writes all of them: a thread that
comes to wait, the posting thread, now and then (`Connection.post`), or the loop half a millisecond
later. If the posting thread holds the interpreter's lock, the loop comes too late.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import final

from telegrad.transport.loop import LoopThread

BURST_SECONDS = 50e-6  # a message so soon after the one before belongs to a burst
# So many in a row of that kind are a burst. If a thread sends three calls and does not wait for
# their replies, each is written at once.
BURSTS = 4
WRITE_SECONDS = 0.0005  # after which a burst is written, if its thread does something else


@final
class BurstWriter:
    """The messages that wait to be written together, for all direct sockets of an exchange.

    Its state has no lock: a post that is counted wrongly is written sooner, or half a millisecond
    later.

    Args:
        loop: The loop that writes the messages that no thread has written.

    Attributes:
        waiting: The functions that write the streams; empty where nothing waits.
    """

    def __init__(self, loop: LoopThread) -> None:
        self.waiting: deque[Callable[[], object]] = deque()
        self._loop = loop
        self._last_post = 0.0
        self._in_a_row = 0  # posts that came soon after the one before
        self._write_due = False  # on the loop

    def takes(self, write: Callable[[], object]) -> bool:
        """Takes the messages that a stream has to write; returns True if they wait for others.

        Messages that the loop posts do not wait.

        Args:
            write: Writes the messages; called once, in any thread, if this returned True.
        """
        now = time.monotonic()
        soon = now - self._last_post < BURST_SECONDS
        self._last_post = now
        self._in_a_row = self._in_a_row + 1 if soon else 0
        if self._in_a_row < BURSTS or self._loop.is_loop_thread():
            return False
        self.waiting.append(write)
        if not self._write_due:
            self._write_due = True  # first: the loop may write, and clear it, before this goes on
            try:
                self._loop.call_soon(self._write_soon)
            except BaseException:  # of a signal handler
                self._write_due = False
                raise
        return True

    def write(self) -> None:
        """Writes the messages that wait; from any thread."""
        while self.waiting:
            try:
                write = self.waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            write()
            self._last_post = time.monotonic()  # the burst goes on with messages posted now

    def _write_soon(self) -> None:
        self._loop.loop.call_later(WRITE_SECONDS, self._write_late)

    def _write_late(self) -> None:
        self._write_due = False  # cleared first: a later message makes a write due again
        self.write()
