"""When a long wait tells the log what it waits for: after a while, and then ever more rarely."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

__all__ = ["Reminder"]

# A wait that a user would call long; what ends within it nobody wants to read about.
FIRST_SECONDS = 10.0
GROWTH = 3.0
LONGEST_SECONDS = 600.0


@final
class Reminder:
    """The times at which one wait is told of; starts with the wait.

    Args:
        clock: Seconds of any monotonic clock.
    """

    __slots__ = ("_at", "_clock", "_pause")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = FIRST_SECONDS
        self._at = clock() + self._pause

    @property
    def left(self) -> float:
        """Seconds until the next time, at least 0."""
        return max(self._at - self._clock(), 0.0)

    def is_due(self) -> bool:
        """Tells whether it is time now; if so the next time is set."""
        if self.left > 0:
            return False
        self._pause = min(GROWTH * self._pause, LONGEST_SECONDS)
        self._at = self._clock() + self._pause
        return True
