"""Work that is done now and then, as long as there is something left to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from telegrad.critical import critical


@final
class Tick:
    """Calls a function at times, never twice at once. `start` may be called from any thread.

    Args:
        after: Calls a function on the loop, some seconds later.
        seconds: Seconds between two calls.
        work: The function; its exceptions do not end the ticking.
        is_left: Returns True if there will be another tick; called on the loop.

    Example:
        >>> later, left = [], ["a", "b"]
        >>> tick = Tick(lambda seconds, call: later.append(call), 1.0, left.pop, lambda: bool(left))
        >>> tick.start(), tick.start(), len(later)  # it ticks already
        (None, None, 1)
        >>> later.pop()(), left, len(later)
        (None, ['a'], 1)
        >>> later.pop()(), left, len(later)  # nothing is left
        (None, [], 0)
    """

    __slots__ = ("_after", "_is_left", "_lock", "_seconds", "_ticking", "_work")

    def __init__(
        self,
        after: Callable[[float, Callable[[], None]], object],
        seconds: float,
        work: Callable[[], object],
        is_left: Callable[[], bool],
    ) -> None:
        self._after = after
        self._seconds = seconds
        self._work = work
        self._is_left = is_left
        self._lock = threading.Lock()
        self._ticking = False  # set to True under the lock

    def start(self) -> None:
        """Goes on ticking; call it after whatever is to be done was entered."""
        if self._ticking:
            return
        with critical.section, self._lock:
            start, self._ticking = not self._ticking, True
        if start:
            self._after(self._seconds, self._tick)

    def _tick(self) -> None:
        try:
            self._work()
        finally:
            # First: a thread that still reads True has entered what `is_left` sees. One that reads
            # False starts the next tick, and this one starts no other.
            self._ticking = False
            if self._is_left():
                self.start()
