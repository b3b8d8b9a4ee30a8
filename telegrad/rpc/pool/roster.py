"""The assignment of work to the pool's threads: a pure table of counts and events.

Work lacks a thread only while `num_threads` others are taken and none of them waits for telegrad.
If none of them has ended, or waited, 20 ms later, one more thread starts. So the pool cannot
deadlock. Work that others wait for (nested calls, callbacks, the library's own work) is taken
before work that nobody waits for yet (root calls), and has room where root calls have none left:

    threads   0 ........ num_threads ........ max_threads ............... 4 * max_threads
    roots       started     when one waits      PoolExhaustedError
    nested      started     when one waits      when one waits              PoolExhaustedError

Work that comes within a millisecond after other work was taken is left to the threads that run, and
nobody is woken for it: most calls are quick, and threads that take turns at the interpreter's lock
take longer. If none of those has come back a millisecond later, one more thread is woken for what
was left, then two, four and so on, a millisecond apart, until others than those woken take work. A
thread rests, though work is left, while others take it quickly.

One idle thread watches the sockets. It does the work that it submits while it watches itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, final

NOBODY: Final = 0  # no thread has this number
# Root calls leave nested ones this many times their number: 64 chains of 20 calls between two
# workers need 640 threads each. A recursion without an end stops here, and not at the kernel's
# limit.
NESTED_SHARE: Final = 4
# After so many pieces of nested work in a row a root call has its turn: a thread may wait for that
# call unseen, and nested work may never cease.
TURNS: Final = 8
# The time in which a thread that took work is expected back: quick work takes microseconds.
QUICK_SECONDS = 0.001
# A thread rests where others took so many pieces of work while it did its own, and each of them
# needs less than this time for one: then they take turns at the interpreter's lock, as it would.
OTHERS: Final = 4
TURN_SECONDS: Final = 0.0002

# The Context in which it runs, the function, and its arguments.
Work: TypeAlias = tuple[Any, Callable[..., Any], tuple[Any, ...]]


class Do(Enum):
    """An action of the pool after an event, done without its lock."""

    CALL = "the thread that watches is called to work"
    WAKE = "one idle thread is woken"
    START = "one more thread starts"
    TICK = "it is looked in 20 ms whether work was taken"
    LOOK = "it is looked in a millisecond whether work was taken"


class Rest(Enum):
    """The next step of a thread that has done its work."""

    NOT = "it takes work that was left to it"
    IDLE = "it waits for work, or watches"
    OVER = "it ends, as it is one too many"


Todo: TypeAlias = tuple[Do, ...]
NOTHING: Todo = ()


@final
@dataclass(slots=True)
class WatcherGate:
    """The gate at which the idle thread that watches is called to work.

    Attributes:
        watcher: The thread that watches; 0 for none.
        shut: True until it is called.
        wake: Wakes the thread while it watches.
    """

    watcher: int = NOBODY
    shut: bool = True
    wake: Callable[[], None] | None = None


@final
class ThreadRoster:
    """The threads of a pool, and the work that they have not taken; guarded by the pool's lock.

    Args:
        num_threads: The number of threads that run user code when none of them waits.
        max_threads: The number of threads from which root calls are refused; nested ones from 4
            times as many.

    Attributes:
        threads: The number of threads.
        idle: Those of the threads that rest, or are about to, and the one that watches.
        blocked: Those of the threads that are inside a wait of telegrad's.
        gate: The gate at which the thread that watches is called to work.
        taken: Pieces of work that were taken so far.
        left: Those of the waiting pieces that are left to the threads that run.
        closed: True if threads end when they have nothing to do.

    Example:
        >>> roster = ThreadRoster(2, 100)
        >>> roster.enter((None, print, ()), nested=False, thread=1, now=0.0)
        (<Do.WAKE: 'one idle thread is woken'>, <Do.START: 'one more thread starts'>)
        >>> roster.take(0.0)[1], roster.threads, roster.idle
        (<built-in function print>, 1, 0)
    """

    def __init__(self, num_threads: int, max_threads: int) -> None:
        self._num_threads = num_threads
        self._max_threads = max_threads
        self._nested: deque[Work] = deque()
        self._roots: deque[Work] = deque()
        self._in_a_row = 0  # nested work taken since a root call was
        self._took_at = -math.inf  # the time at which a thread last took work, or was woken
        self._ticks = False  # True while TICK is under way
        self._looks = 0  # while LOOK is under way: the threads that it wakes, twice the last ones
        self.threads = self.idle = self.blocked = 0
        self.taken = self.left = 0
        self.gate = WatcherGate()
        self.closed = False

    @property
    def waiting(self) -> int:
        """The pieces of work that were not taken yet."""
        return len(self._nested) + len(self._roots)

    def exhausted(self, *, nested: bool) -> bool:
        """Returns True if no thread is free for one more call, and none may be added."""
        most = self._max_threads * (NESTED_SHARE if nested else 1)
        return self.threads >= most and self.idle <= self.waiting

    # Events.

    def enter(self, work: Work, *, nested: bool, thread: int, now: float) -> Todo:
        """Takes work that some thread has submitted."""
        (self._nested if nested else self._roots).append(work)
        if self.gate.watcher == thread and self.gate.shut:
            self.gate.shut = False  # it does the work that it has read
            self._took_at = now
            return NOTHING
        # Work may be left to other threads only where one of them will look: one that runs and does
        # not wait, or one that was called for earlier work.
        others = len(self._nested) + len(self._roots) - self.left > 1
        comes_back = others or self.threads - self.idle > self.blocked
        if not comes_back or now - self._took_at > QUICK_SECONDS:
            self._took_at = now
            return self._find_thread()
        self.left += 1
        if self._looks:
            return NOTHING
        self._looks = 1
        return (Do.LOOK,)

    def take(self, now: float) -> Work | None:
        """Returns the work whose turn it is, for a thread that was idle; None if there is none."""
        if not (self._nested or self._roots):
            return None
        self.idle -= 1
        self.taken += 1
        self._took_at = now
        # A thread that comes by the token of work that was withdrawn may take work that was left to
        # another one, which must not look for it then.
        self.left = min(self.left, len(self._nested) + len(self._roots) - 1)
        turn_of_roots = self._in_a_row >= TURNS and self.threads <= self._max_threads
        if self._nested and not (self._roots and turn_of_roots):
            self._in_a_row += 1
            return self._nested.popleft()
        self._in_a_row = 0
        return self._roots.popleft()

    def withdraw(self, work: Work) -> bool:
        """Takes back work that waits while every thread waits, too; returns True if it did."""
        if self.threads > self.blocked:
            return False
        for waiting in (self._nested, self._roots):
            for k, each in enumerate(waiting):
                if each is work:
                    del waiting[k]
                    return True
        return False

    def rest(self, seconds: float, others: int) -> Rest:
        """Returns the next step of a thread that did its work, and counts it as idle or ended.

        Args:
            seconds: The time since it took that work.
            others: The pieces of work that other threads have taken since.
        """
        self.idle += 1
        if self.threads - self.blocked <= self._num_threads:
            if self.left:
                run = self.threads - self.idle - self.blocked  # others, which come back
                quick = others >= OTHERS and seconds * run < others * TURN_SECONDS
                if run and quick:
                    return Rest.IDLE
                self.left -= 1
                return Rest.NOT
            return Rest.IDLE
        left = self.waiting if self.threads <= self._max_threads else len(self._nested)
        if left >= self.idle or self.closed:
            return Rest.IDLE
        self.end()
        return Rest.OVER

    def end(self) -> None:
        """Records that an idle thread ended, or that a reserved one did not start."""
        self.threads -= 1
        self.idle -= 1

    def begin_watch(self, thread: int) -> bool:
        """Offers to watch, for a thread that rests; returns True if it does."""
        if self.gate.watcher or self._nested or self._roots or self.closed:
            return False
        self.gate.watcher, self.gate.shut = thread, True
        return True

    def end_watch(self) -> bool:
        """Records that the watcher stopped watching; returns True if it was called to work."""
        self.gate.watcher = NOBODY
        return not self.gate.shut

    def begin_wait(self) -> Todo:
        """Records that a thread waits for telegrad: others may run in its place."""
        self.blocked += 1
        found = self.announce_left()
        return (*found, Do.START) if self._reserve() else found

    def end_wait(self) -> None:
        """Records that a thread waits no more."""
        self.blocked -= 1

    def tick(self, taken: int) -> Todo:
        """Handles the end of 20 ms since so many pieces of work were taken."""
        self._ticks = False
        grown = (Do.START,) if taken == self.taken and self._reserve(stalled=True) else NOTHING
        return grown + self.needs_tick()

    def look(self, taken: int) -> Todo:
        """Handles the end of a millisecond since so many pieces of work were taken."""
        found, step = NOTHING, 1
        if self.taken - taken <= self._looks // 2:  # no more than the threads woken last
            found, step = self.announce_left(self._looks), 2 * self._looks
        self._looks = step if self.left else 0
        return (*found, Do.LOOK) if self._looks else found

    def close(self) -> Todo:
        """Records that nothing is submitted any more."""
        found = self.announce_left()
        # After the work that was left has its threads: a closed table reserves none.
        self.closed, self.gate.shut = True, False
        return found

    # The consequences of events.

    def announce_left(self, most: float = math.inf) -> Todo:
        """Finds a thread for each piece of work that was left to those that run, or for so many."""
        found = NOTHING
        while self.left and most > 0:
            self.left -= 1
            most -= 1
            found += self._find_thread()
        return found

    def needs_tick(self) -> Todo:
        """Orders a later look if work has no thread."""
        if self._ticks or self.closed or self.waiting - self.left <= self.idle:
            return NOTHING
        self._ticks = True
        return (Do.TICK,)

    def _find_thread(self) -> Todo:
        """Finds a thread for work that is not left to those that run."""
        if self.gate.watcher and self.gate.shut and self.waiting - self.left >= self.idle:
            self.gate.shut = False
            return (Do.CALL,)
        if self._reserve():
            return (Do.WAKE, Do.START)
        return (Do.WAKE, *self.needs_tick())

    def _reserve(self, *, stalled: bool = False) -> bool:
        """Counts one more thread, as idle, if one is needed and allowed."""
        if self.waiting - self.left <= self.idle or self.closed:
            return False
        full = self.threads >= self._max_threads
        if full and (len(self._nested) <= self.idle or self.exhausted(nested=True)):
            return False
        if not stalled and self.threads - self.blocked >= self._num_threads:
            return False
        self.threads += 1
        self.idle += 1
        return True
