"""All deadlines of an agent: one heap, ticked by the loop; no timer thread, no task each."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import final

from telegrad.critical import critical
from telegrad.transport import LoopThread, get_logger

# Cancelled entries stay in the heap until they outnumber the living ones, and are at least this
# many: most calls are answered long before their deadline, so removing each would cost O(n).
COMPACT_FROM = 256

_logger = get_logger(__name__)


@final
class Deadline:
    """One entry; `cancel()` from any thread, idempotent."""

    __slots__ = ("_owner", "callback")

    def __init__(self, owner: Deadlines, callback: Callable[[], None] | None) -> None:
        self._owner = owner
        self.callback = callback

    def cancel(self) -> None:
        """Removes the entry; the callback may be running at this moment."""
        if self.callback is not None:
            self.callback = None
            self._owner._note_cancelled()


@final
class Deadlines:
    """A heap of moments on the clock of `time.monotonic`; callbacks run on the loop.

    Args:
        loop: The loop thread that ticks the heap.
    """

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        # An empty Context, so that the timer keeps nothing of the code that armed it: it arms the
        # next.
        self._context = contextvars.Context()
        self._lock = threading.Lock()
        self._heap: list[
            tuple[float, int, Deadline]
        ] = []  # orders differ: nothing else is compared
        self._order = itertools.count()
        self._armed = math.inf  # the moment of the timer, or that after `_arm` has run
        self._timer: asyncio.TimerHandle | None = None  # touched on the loop alone
        self._cancelled = 0
        self._closed = False

    def at(self, when: float, callback: Callable[[], None]) -> Deadline:
        """Calls `callback` on the loop at the moment `when`; never for `math.inf`.

        Wakes the loop only when no earlier moment is waited for. From any thread.
        """
        if when == math.inf:
            return Deadline(self, None)
        deadline = Deadline(self, callback)
        with critical.section, self._lock:
            if self._closed:
                return deadline
            heapq.heappush(self._heap, (when, next(self._order), deadline))
            earlier = when < self._armed
            if earlier:
                # Moved at once, and not by `_arm`: of the threads that come before the loop does,
                # only one with a still earlier moment wakes it again.
                self._armed = when
        if earlier:
            self._loop.call_soon(self._arm)
        return deadline

    def after(self, delay: float, callback: Callable[[], None]) -> Deadline:
        """Calls `callback` on the loop in `delay` seconds."""
        return self.at(time.monotonic() + delay, callback)

    def close(self) -> None:
        """Drops all entries; none is called any more. From any thread."""
        with critical.section, self._lock:
            if self._closed:
                return
            self._closed = True
            self._heap.clear()
        self._loop.call_soon(self._disarm)

    def _note_cancelled(self) -> None:
        with critical.section, self._lock:
            self._cancelled += 1
            if self._cancelled > COMPACT_FROM and 2 * self._cancelled > len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2].callback is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _arm(self) -> None:
        self._disarm()
        with critical.section, self._lock:
            if self._closed or not self._heap:
                self._armed = math.inf
                return
            self._armed = self._heap[0][0]
            delay = max(0.0, self._armed - time.monotonic())
        self._timer = self._loop.loop.call_later(delay, self._tick, context=self._context)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        due: list[Callable[[], None]] = []
        now = time.monotonic()
        with critical.section, self._lock:
            while self._heap and self._heap[0][0] <= now:
                _, _, entry = heapq.heappop(self._heap)
                if entry.callback is not None:
                    due.append(entry.callback)
                    # An entry that has left the heap must not be counted by a later `cancel`.
                    entry.callback = None
                else:
                    # `cancel` takes the callback away without the lock and counts after that: this
                    # entry may not be counted yet.
                    self._cancelled = max(0, self._cancelled - 1)
        try:
            for callback in due:
                try:
                    callback()
                # The top of the heap's task: one bad callback stops no other, nor does a
                # cancellation that it lets through.
                except (Exception, asyncio.CancelledError):
                    _logger.exception("a deadline's callback failed")
        finally:  # else no later moment would come
            self._arm()
