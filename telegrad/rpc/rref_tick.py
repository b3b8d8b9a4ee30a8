"""The slow tick that counts garbage where no event does: one at a time, none where nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from telegrad.rpc.agent import Agent

__all__ = ["Tick"]

# Garbage is counted by the next event; where there is none, by a tick this many seconds later.
DRAIN_SECONDS = 0.1


@final
class Tick:
    """Of one registry. From any thread; blocks nowhere.

    Args:
        agent: On whose loop it ticks.
        lock: That of the counting tables.
        settle_up: Counts the garbage, and sends what waits for a ride.
        is_left: Whether there will be another one; called under the lock.
    """

    def __init__(
        self,
        agent: Agent,
        lock: threading.Lock,
        settle_up: Callable[[], None],
        is_left: Callable[[], bool],
    ) -> None:
        self._agent = agent
        self._lock = lock
        self._settle_up = settle_up
        self._is_left = is_left
        self._ticking = False  # written under the lock

    def start(self) -> None:
        """Goes on ticking; comes after what is to be counted was entered."""
        if self._ticking:
            return
        with self._lock:
            start, self._ticking = not self._ticking, True
        if start:
            self._agent.after(DRAIN_SECONDS, self._tick)

    def _tick(self) -> None:
        try:
            self._settle_up()
        finally:
            with self._lock:  # until here `start` begins no second one
                self._ticking = False  # first: who still reads True has entered what `is_left` sees
                again = self._ticking = self._is_left()
        if again:
            self._agent.after(DRAIN_SECONDS, self._tick)
