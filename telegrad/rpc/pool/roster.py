"""Which thread of the pool does which work: a pure table of counts and events.

Some work has no thread only while `num_threads` others are taken and none of them waits for telegrad;
if none of them has ended, or waited, 20 ms later, there is one thread more. So the pool cannot
deadlock. What others wait for (nested calls, callbacks, the library's own work) is taken before what
nobody waits for yet (root calls), and has room where those have none left:

    threads   0 ........ num_threads ........ max_threads ............... 4 * max_threads
    roots       started     when one waits      PoolExhaustedError
    nested      started     when one waits      when one waits              PoolExhaustedError

Work that comes within a millisecond after other work was taken is left to the threads that run, and
nobody is woken for it: most calls are quick, and threads that take turns at the interpreter's lock
take longer. A look one millisecond later wakes other threads if none of those has come back.

One idle thread watches the sockets. Work that it submits while it watches it does itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeAlias, final

__all__ = [
    "NESTED_SHARE",
    "QUICK_SECONDS",
    "TURNS",
    "Do",
    "Rest",
    "Roster",
    "Todo",
    "WatcherGate",
    "Work",
]

NOBODY: Final = 0  # no thread has this number
# Root calls leave nested ones this many times their number: 64 chains of 20 calls between two
# workers need 640 threads each. A recursion without an end stops here, and not at the kernel's limit.
NESTED_SHARE: Final = 4
# So many pieces of nested work in a row are taken before a root call gets its turn: that one may be
# what a thread waits for unseen, and nested work may never cease.
TURNS: Final = 8
# How long a thread that took work is expected to come back soon: quick work takes microseconds.
QUICK_SECONDS = 0.001

# The Context in which it runs, the function, and its arguments.
Work: TypeAlias = tuple[Any, Callable[..., Any], tuple[Any, ...]]


class Do(Enum):
    """What the pool has to do after an event, without its lock."""

    CALL = "the thread that watches is called to work"
    WAKE = "one idle thread is woken"
    START = "one more thread starts"
    TICK = "it is looked in 20 ms whether work was taken"
    LOOK = "it is looked in a millisecond whether work was taken"


class Rest(Enum):
    """What a thread does that has done its work."""

    NOT = "it takes work that was left to it"
    IDLE = "it waits for work, or watches"
    OVER = "it ends, as it is one too many"


Todo: TypeAlias = tuple[Do, ...]
NOTHING: Todo = ()


@final
class WatcherGate:
    """Where the idle thread that watches is called to work.

    Attributes:
        shut: Whether it was not called yet.
        wake: What wakes the thread while it watches.
    """

    __slots__ = ("shut", "wake")

    def __init__(self) -> None:
        self.shut = True
        self.wake: Callable[[], None] | None = None


@final
class Roster:
    """The threads of a pool, and the work that they have not taken; guarded by the pool's lock.

    Args:
        num_threads: How many run user code when none of them waits.
        max_threads: From so many on root calls are refused; nested ones from 4 times as many.

    Attributes:
        threads: How many there are.
        idle: Of these, those that rest, or are about to, and the one that watches.
        blocked: Of these, those inside a wait of telegrad's.
        watcher: The thread that watches; 0 for none.
        gate: Where that is called to work.
        taken: Pieces of work that were taken so far.
        waiting: Pieces of work that were not taken yet.
        left: Of these, those that are left to the threads that run.
        closed: Whether threads end when they have nothing to do.

    Example:
        >>> roster = Roster(2, 100)
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
        self._took_at = -math.inf  # when a thread last took work, or was woken for some
        self._ticks = self._looks = False  # whether TICK and LOOK are under way
        self.threads = self.idle = self.blocked = 0
        self.taken = self.waiting = self.left = 0
        self.watcher = NOBODY
        self.gate = WatcherGate()
        self.closed = False

    def exhausted(self, *, nested: bool) -> bool:
        """Tells whether no thread is free for one more call, and none may be added."""
        most = self._max_threads * (NESTED_SHARE if nested else 1)
        return self.threads >= most and self.idle <= self.waiting

    # Events.

    def enter(self, work: Work, *, nested: bool, thread: int, now: float) -> Todo:
        """Work was submitted, by some thread."""
        (self._nested if nested else self._roots).append(work)
        self.waiting += 1
        if self.watcher == thread and self.gate.shut:
            self.gate.shut = False  # it does what it has read
            self._took_at = now
            return NOTHING
        comes_back = self.waiting - self.left > 1 or self.threads - self.idle > self.blocked
        if not comes_back or now - self._took_at > QUICK_SECONDS:
            self._took_at = now
            return self._find_thread()
        self.left += 1
        if self._looks:
            return NOTHING
        self._looks = True
        return (Do.LOOK,)

    def take(self, now: float) -> Work:
        """A thread that was idle takes the work whose turn it is; there is some."""
        self.idle -= 1
        self.taken += 1
        self.waiting -= 1
        self._took_at = now
        turn_of_roots = self._in_a_row >= TURNS and self.threads <= self._max_threads
        if self._nested and not (self._roots and turn_of_roots):
            self._in_a_row += 1
            return self._nested.popleft()
        self._in_a_row = 0
        return self._roots.popleft()

    def rest(self) -> Rest:
        """A thread has done its work; returns what it does now, and counts it as idle or ended."""
        self.idle += 1
        if self.threads - self.blocked <= self._num_threads:
            if self.left:
                self.left -= 1
                return Rest.NOT
            return Rest.IDLE
        left = self.waiting if self.threads <= self._max_threads else len(self._nested)
        if left >= self.idle or self.closed:
            return Rest.IDLE
        self.end()
        return Rest.OVER

    def end(self) -> None:
        """A thread that was idle ended, or one that was reserved did not start."""
        self.threads -= 1
        self.idle -= 1

    def begin_watch(self, thread: int) -> bool:
        """A thread that rests would watch; tells whether it does."""
        if self.watcher or self.waiting or self.closed:
            return False
        self.watcher, self.gate.shut = thread, True
        return True

    def end_watch(self) -> bool:
        """The thread that watched does so no more; tells whether it was called to work."""
        self.watcher = NOBODY
        return not self.gate.shut

    def begin_wait(self) -> Todo:
        """A thread waits for telegrad: others may run in its place."""
        self.blocked += 1
        found = self.announce_left()
        return (*found, Do.START) if self._reserve() else found

    def end_wait(self) -> None:
        """A thread waits no more."""
        self.blocked -= 1

    def tick(self, taken: int) -> Todo:
        """20 ms have passed since so much work was taken."""
        self._ticks = False
        grown = (Do.START,) if taken == self.taken and self._reserve(stalled=True) else NOTHING
        return grown + self.needs_tick()

    def look(self, taken: int) -> Todo:
        """A millisecond has passed since so much work was taken."""
        found = self.announce_left() if taken == self.taken else NOTHING
        self._looks = self.left > 0
        return (*found, Do.LOOK) if self._looks else found

    def close(self) -> Todo:
        """Nothing is submitted any more."""
        found = self.announce_left()
        self.closed, self.gate.shut = True, False
        return found

    # What follows.

    def announce_left(self) -> Todo:
        """Finds a thread for each piece of work that was left to those that run."""
        found = NOTHING
        while self.left:
            self.left -= 1
            found += self._find_thread()
        return found

    def needs_tick(self) -> Todo:
        """Has it looked later whether work that has no thread was taken."""
        if self._ticks or self.closed or self.waiting - self.left <= self.idle:
            return NOTHING
        self._ticks = True
        return (Do.TICK,)

    def _find_thread(self) -> Todo:
        """Finds a thread for work that is not left to those that run."""
        if self.watcher and self.gate.shut and self.waiting - self.left >= self.idle:
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
