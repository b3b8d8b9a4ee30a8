"""Counts frames that bring nothing new, of which honest peers write a few a second. Pure."""

from __future__ import annotations

from typing import final

from telegrad.errors import DecodeError

__all__ = ["IdleFrames"]

# Between two ticks of the exchange, of which there are four a heartbeat: one beat, its echo, and
# what a carrier brings again after a break. A thousand cost the loop 20 ms.
MOST_IDLE_FRAMES = 1000


@final
class IdleFrames:
    """Of one peer."""

    def __init__(self) -> None:
        self._news = 0
        self._idle = 0

    def take(self, news: int) -> None:
        """Hears of a frame.

        Args:
            news: A number that has grown if the frame brought anything.

        Raises:
            DecodeError: There were too many that did not.
        """
        self._idle = self._idle + 1 if news == self._news else 0
        self._news = news
        if self._idle > MOST_IDLE_FRAMES:
            raise DecodeError(f"a flood: {self._idle} frames with nothing new in them")

    def tick(self) -> None:
        """Begins to count anew."""
        self._idle = 0
