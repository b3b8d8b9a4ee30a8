"""Looking again and again for a short while before a thread sleeps.

A thread that sleeps is woken 30 us after its message came, on a processor whose caches are cold; a
thread that looks meanwhile goes on at once. The last waits tell if that pays, as for Linux's halt
polling of virtual machines (Documentation/virt/kvm/halt-polling): after a wait that was short the
next one begins with looking, and long waits end it. Event loops learn by the same rule
(`loop_watch`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar, final

from telegrad.transport.host import cores

Number = TypeVar("Number", int, float)
Ready = TypeVar("Ready")

# Between looks that leave the processor to others: a longer gap means that another thread had it,
# or the interpreter, for itself.
WANTED_SECONDS = 0.0002
LEAST = 1 / 8  # of the longest time: below that no thread looks

# A call with a layer's arrays and gradients is answered within so many seconds; 2 ms were no
# better. A thread that finds its processor taken stops looking, so that many workers may share few
# processors. In two runs on two processors, four workers made 6,400 and 5,400 calls/s, and 4,700
# and 4,100 without looking. Eight workers made 5,100 and 4,400, and 5,700 and 5,400 without.
# Messages that lend big parts get no longer time: 0.3 ms more for each MiB changed nothing (1 MiB
# there and back: 700 to 710 us with it, 670 to 690 without).
SPIN_SECONDS = 0.001


def longest_spin() -> float:
    """Returns the seconds that a thread may look: none where this process has one processor."""
    return SPIN_SECONDS if cores() > 1 else 0.0


# Seconds. Python wakes no lock and no poll for a signal that came just before a thread fell asleep:
# the signal is handled when the thread has slept for so long.
LONGEST_SLEEP = 1.0


@final
class Spin:
    """The time of looking with which the next wait begins; for one thread at a time.

    Args:
        most: Seconds; 0 for never.

    Attributes:
        window: Seconds of looking, in the next wait.
    """

    __slots__ = ("_most", "window")

    def __init__(self, most: float) -> None:
        self._most = most
        self.window = 0.0

    def learn(self, waited: float) -> None:
        """Takes the seconds that the last wait took."""
        if waited <= self._most:
            self.window = self._most
        elif self.window:
            half = self.window / 2
            self.window = half if half >= LEAST * self._most else 0.0

    def poll(self, poll: Callable[[Number], list[Ready]], timeout: Number) -> list[Ready]:
        """Polls until something is there or the time is over; returns what is there.

        Args:
            poll: The method of an `epoll` or a `poll` object, or of a selector.
            timeout: The longest wait, in the unit of `poll`.
        """
        began = looked = time.monotonic()
        if self.window:
            until = began + self.window
            while True:
                if ready := poll(0):
                    return ready
                now = time.monotonic()
                if now >= until or now - looked > WANTED_SECONDS:
                    break
                looked = now
                os.sched_yield()
        ready = poll(timeout)
        self.learn(time.monotonic() - began)
        return ready
