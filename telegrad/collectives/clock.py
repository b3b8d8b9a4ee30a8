"""When something that waits speaks up: it tells that it is here, it is logged, it gives up."""

from __future__ import annotations

import enum
import math
import time
from typing import final

from telegrad.rpc import current_served_call, seconds

__all__ = ["TELL_AFTER", "Clock", "Due", "time_limit"]


# Who waits for so long says so; longer than ranks of one program mostly differ.
TELL_AFTER = 2.0


class Due(enum.Enum):
    """What is to be done at a moment."""

    NOTHING = enum.auto()
    TELL = enum.auto()
    WARN = enum.auto()
    EXPIRE = enum.auto()


@final
class Clock:
    """When what is due, in seconds from now.

    Everyone who waits tells the others so well before the warning or the deadline: whoever speaks
    up then knows who is missing. It is due again each time that the wait has grown twice as long.

    Args:
        limit: Seconds until the deadline.
        warn_after: Seconds until a warning.
    """

    def __init__(self, limit: float, warn_after: float) -> None:
        self.limit = limit
        self._began = time.monotonic()
        self._tell_at = min(limit / 2, warn_after / 2, TELL_AFTER)
        self._warn_at = warn_after

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began

    def next(self) -> float:
        """Returns the seconds until something is due."""
        return max(min(self._tell_at, self._warn_at, self.limit) - self.elapsed, 0.0)

    def due(self) -> Due:
        """Returns what is due now."""
        elapsed = self.elapsed
        if elapsed >= self.limit:
            return Due.EXPIRE
        if elapsed >= self._tell_at:
            self._tell_at *= 2
            return Due.TELL
        if elapsed >= self._warn_at:
            self._warn_at = math.inf
            return Due.WARN
        return Due.NOTHING


def time_limit(timeout: float | None, default: float) -> float:
    """Returns the seconds that a verb may wait: what the served call has left bounds them."""
    limit = seconds(timeout, default)
    served = current_served_call()
    if served is None:
        return limit
    return min(limit, max(served.deadline - time.monotonic(), 0.0))
