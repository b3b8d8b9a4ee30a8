"""The stall of lanes: a sender that is behind and makes no progress must not wait for ever.

Heartbeats on the control stream say how many chunks the receiver took from the lanes. While some
are owed, the time since that number last grew is added up. The time between two ticks counts only
up to a bound, so that a worker that slept itself first reads the data that has arrived. Pure: the
time is always an argument.
"""

from __future__ import annotations

from typing import final

__all__ = ["Standstill"]

TICKS_PER_PATIENCE = 5  # a late tick counts for no more than this part of the bound


@final
class Standstill:
    """The progress of the chunks of one stream, as their sender knows it.

    Args:
        now: The time.
        patience: Seconds without progress after which the stream is given up.
    """

    def __init__(self, now: float, *, patience: float) -> None:
        self._patience = patience
        self._last_tick = now
        self._idle = 0.0
        self._taken = 0

    @property
    def taken(self) -> int:
        """The number of chunks that the receiver has said it took."""
        return self._taken

    def heard(self, taken: int) -> None:
        """Takes the number of chunks that the receiver took."""
        if taken > self._taken:
            self._taken = taken
            self._idle = 0.0

    def tick(self, now: float, *, sent: int, waiting: bool) -> bool:
        """Returns True if the lanes are stalled.

        Args:
            now: The time.
            sent: The number of chunks that were given to the lanes.
            waiting: True if there are more to send.
        """
        passed = min(max(0.0, now - self._last_tick), self._patience / TICKS_PER_PATIENCE)
        self._last_tick = now
        behind = waiting or sent > self._taken
        self._idle = self._idle + passed if behind else 0.0
        return self._idle > self._patience
