"""Looking again and again for a short while before a thread sleeps.

A thread that sleeps is woken 30 us after its message came, on a processor that has forgotten what it
did; one that looks meanwhile goes on at once. Whether that pays is learnt from the last waits, as
Linux's halt polling does for virtual machines (Documentation/virt/kvm/halt-polling): a wait that was
short calls for looking in the next one, waits that were long end it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar, final

__all__ = ["Spin", "longest_spin"]

Number = TypeVar("Number", int, float)

LEAST = 1 / 8  # of the longest time: below that nothing is looked for


def longest_spin(wanted: float) -> float:
    """Returns the seconds that a thread may look: none where this process has one processor.

    Args:
        wanted: As the user says.
    """
    return wanted if len(os.sched_getaffinity(0)) > 1 else 0.0


@final
class Spin:
    """How long the next wait begins with looking; of one thread at a time.

    Args:
        most: Seconds; 0 for never.
    """

    __slots__ = ("_most", "_window")

    def __init__(self, most: float) -> None:
        self._most = most
        self._window = 0.0

    def poll(
        self, poll: Callable[[Number], list[tuple[int, int]]], timeout: Number
    ) -> list[tuple[int, int]]:
        """Polls until something is there or the time is over; returns what is ready.

        Args:
            poll: Of an `epoll` or a `poll` object.
            timeout: In its unit.
        """
        began = time.monotonic()
        if window := self._window:
            until = began + window
            while True:
                if ready := poll(0):
                    return ready
                if time.monotonic() >= until:
                    break
                os.sched_yield()
        ready = poll(timeout)
        if time.monotonic() - began <= self._most:
            self._window = self._most
        elif window:
            self._window = window / 2 if window / 2 >= LEAST * self._most else 0.0
        return ready
