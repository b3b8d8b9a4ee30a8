"""The pool that runs plain user functions, concurrently.

It grows at once when a wait of telegrad's blocks in it, and by one thread when work has waited
20 ms while no thread took any: that one may be what the others wait for, with a lock or a condition
that telegrad cannot see. A thread whose wait is over goes on at once, nothing waits to get back in,
and threads above `num_threads` end when they are idle. The pool's looks are ticked by the agent's
deadlines: there is no polling thread.

One idle thread watches what the agent says (`idle_with`): the sockets of this worker. Work that it
submits while it watches it does itself, with no wake-up in between.

Work that comes within a millisecond after other work was taken is left to the threads that run, and
nobody is woken for it: most calls are quick, and threads that take turns at the interpreter's lock
take longer. A look one millisecond later wakes other threads if none of those has come back.

Why the pool cannot deadlock: some work has no thread only while `num_threads` others are taken and
none of them waits for telegrad; if one of them has not ended or waited 20 ms later, there is one
thread more. What others wait for (nested calls, callbacks, the library's own work) is taken before
what nobody waits for yet (root calls), and has room where those have none left:

    threads   0 ........ num_threads ........ max_threads ............... 4 * max_threads
    roots       started     when one waits      PoolExhaustedError
    nested      started     when one waits      when one waits              PoolExhaustedError
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, final

from telegrad.rpc.future.waits import PoolThread
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.transport import Gate

__all__ = ["Pool"]

NOBODY = 0  # no thread has this number
# At this many threads a process is in trouble that more threads do not cure (each has a stack).
MAX_THREADS = 1000
# Root calls leave nested ones this many times their number: 64 chains of 20 calls between two
# workers need 640 threads each. A recursion without an end stops here, and not at the kernel's limit.
NESTED_SHARE = 4
# So many pieces of nested work in a row are taken before a root call gets its turn: that one may be
# what a thread waits for unseen, and nested work may never cease.
TURNS = 8
# How long work may wait while no thread takes any before one more is started: longer than most
# calls run, shorter than anyone notices.
STALLED_SECONDS = 0.02
# How long a thread that took work is expected to come back soon: quick work takes microseconds.
QUICK_SECONDS = 0.001

_logger = logging.getLogger(__name__)

_Work: TypeAlias = tuple[contextvars.Context, Callable[..., Any], tuple[Any, ...]]


@final
class _WatcherGate:
    """The gate of the idle thread that watches; open when it is called to work.

    Attributes:
        called: Whether it is open.
    """

    __slots__ = ("_wake", "called")

    def __init__(self) -> None:
        self.called = False
        self._wake: Callable[[], None] | None = None

    def is_open(self) -> bool:
        """Tells whether the thread was called."""
        return self.called

    def wake_with(self, wake: Callable[[], None] | None) -> None:
        """Says what wakes the thread while it watches."""
        self._wake = wake

    def open(self) -> None:
        """Wakes the thread, which was called; without the pool's lock."""
        if (wake := self._wake) is not None:
            wake()


@final
class Pool:
    """Daemon threads that take work from one queue.

    Args:
        name: The agent's, for the names of the threads.
        num_threads: How many run user code when none of them waits.
        deadlines: Where the looks are ticked.
        new_context: Makes the Context of work that is submitted without one.
        max_threads: From so many on root calls are refused; nested ones from 4 times as many.
    """

    def __init__(
        self,
        name: str,
        num_threads: int,
        deadlines: Deadlines,
        new_context: Callable[[], contextvars.Context],
        max_threads: int = MAX_THREADS,
    ) -> None:
        self._name = name
        self._watch: Callable[[Gate], None] = _nothing
        self._num_threads = num_threads
        self._max_threads = max_threads
        self._deadlines = deadlines
        self._new_context = new_context
        self._queue: SimpleQueue[bool] = SimpleQueue()  # one token a piece of work; False: end
        self._numbers = itertools.count(1)  # of threads, for their names
        self._lock = threading.Lock()  # guards all below; held for a few instructions
        self._nested: deque[_Work] = deque()
        self._roots: deque[_Work] = deque()
        self._in_a_row = 0  # nested work taken since a root call was
        self._threads = 0
        self._idle = 0  # threads in queue.get(), or on their way to it, and the one that watches
        self._blocked = 0  # threads inside a wait of telegrad's
        self._taken = 0  # pieces of work, so far
        self._stall_watched = False  # whether the 20 ms are ticked
        self._closed = False
        self._gate = _WatcherGate()
        self._watcher = NOBODY  # the thread that watches
        self._took_at = -math.inf  # when a thread last took work, or was woken for some
        self._left = 0  # pieces of work that are left to the threads that run
        self._looking = False  # whether it is looked at each millisecond how those go on

    def idle_with(self, watch: Callable[[Gate], None]) -> None:
        """Says what one idle thread does; before there is any thread.

        Args:
            watch: Watches until a gate opens. It may return early, where there is nothing to
                watch.
        """
        self._watch = watch

    def exhausted(self, *, nested: bool = False) -> bool:
        """Tells whether no thread is free for one more call, and none may be added."""
        most = self._max_threads * (NESTED_SHARE if nested else 1)
        return self._threads >= most and self._idle <= self._pending

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._threads

    @property
    def busy(self) -> int:
        """How much work is waiting or running."""
        return self._pending + self._threads - self._idle

    @property
    def _pending(self) -> int:
        return len(self._nested) + len(self._roots)

    @property
    def _claimed(self) -> int:
        """Work for which a thread was woken, or is to be."""
        return len(self._nested) + len(self._roots) - self._left

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in a thread, in a Context of its own. From any thread."""
        self.submit_in(self._new_context(), func, *args)

    def submit_in(self, context: contextvars.Context, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in a thread, inside `context`; what it raises is logged.

        After `close` each piece of work still runs, in a thread of its own.
        """
        self._enter(self._nested, (context, func, args))

    def submit_call(
        self,
        context: contextvars.Context,
        func: Callable[..., Any],
        *args: Any,
        nested: bool,
    ) -> bool:
        """Does what `submit_in` does, for a call; tells whether it was not refused.

        Args:
            context: The Context in which it runs.
            func: The function.
            *args: Its arguments.
            nested: Whether a call waits for it; else it comes after what others wait for.
        """
        if self._threads >= self._max_threads and self.exhausted(nested=nested):
            return False
        self._enter(self._nested if nested else self._roots, (context, func, args))
        return True

    def close(self) -> None:
        """Lets the threads end once they have done what was submitted; waits for none."""
        with self._lock:
            if self._closed:
                return
            call = self._announce_left()
            self._closed = True
            threads = self._threads
            self._gate.called = True
        call()
        for _ in range(threads):
            self._queue.put(False)
        self._gate.open()

    def _enter(self, queue: deque[_Work], work: _Work) -> None:
        """Decides which thread does a piece of work."""
        with self._lock:
            if self._closed:
                call = self._run_late(work)
            else:
                queue.append(work)
                call = self._assign(time.monotonic())
        call()

    def _run_late(self, work: _Work) -> Callable[[], None]:
        name = f"{self._name}-late"
        return threading.Thread(target=_run, args=(work,), name=name, daemon=True).start

    # Each of the following returns what is to be called without the lock.

    def _assign(self, now: float) -> Callable[[], None]:
        """Decides which thread does the work that was just entered. Holds the lock."""
        if not self._gate.called and self._watcher == threading.get_ident():
            self._gate.called = True  # it does what it has read
            self._took_at = now
            return _nothing
        comes_back = self._claimed > 1 or self._threads - self._idle > self._blocked
        if not comes_back or now - self._took_at > QUICK_SECONDS:
            self._took_at = now
            return self._find_thread()
        self._left += 1
        if self._looking:
            return _nothing
        self._looking = True
        return self._look_later

    def _find_thread(self) -> Callable[[], None]:
        """Wakes a thread for the work that was just entered, or adds one. Holds the lock."""
        gate = self._gate
        if self._watcher and not gate.called and self._claimed >= self._idle:
            gate.called = True
            return gate.open
        self._queue.put(True)
        return self._grow_or_watch()

    def _grow_or_watch(self) -> Callable[[], None]:
        """Adds a thread, or has the 20 ms ticked, where work has no thread. Holds the lock."""
        if self._reserve():
            return self._start
        return self._watch_stall if self._needs_watch() else _nothing

    def _announce_left(self) -> Callable[[], None]:
        """Wakes a thread for each piece that was left to those that run. Holds the lock."""
        calls = []
        while self._left:
            self._left -= 1
            calls.append(self._find_thread())

        def call() -> None:
            for each in calls:
                each()

        return call

    def _reserve(self, *, stalled: bool = False) -> bool:
        """Counts one more thread if one is needed and allowed. Holds the lock."""
        if self._claimed <= self._idle or self._closed:
            return False
        full = self._threads >= self._max_threads
        if full and (len(self._nested) <= self._idle or self.exhausted(nested=True)):
            return False
        if not stalled and self._threads - self._blocked >= self._num_threads:
            return False
        self._threads += 1
        self._idle += 1
        return True

    def _start(self) -> None:
        try:
            _Thread(self, f"{self._name}-pool-{next(self._numbers)}").start()
        except RuntimeError as error:  # the system gives no more; those that run go on
            with self._lock:
                self._threads -= 1
                self._idle -= 1
                watch = self._needs_watch()
            _logger.warning("the pool of %s cannot grow: %s", self._name, error)
            if watch:
                self._watch_stall()

    # Looks at whether work goes on, on the loop.

    def _needs_watch(self) -> bool:
        if self._stall_watched or self._claimed <= self._idle or self._closed:
            return False
        self._stall_watched = True
        return True

    def _watch_stall(self) -> None:
        taken = self._taken
        self._deadlines.after(STALLED_SECONDS, lambda: self._check_stall(taken))

    def _check_stall(self, taken: int) -> None:
        """Adds a thread, 20 ms later, if no work was taken meanwhile."""
        with self._lock:
            self._stall_watched = False
            grow = taken == self._taken and self._reserve(stalled=True)
            watch = self._needs_watch()
        if grow:
            self._start()
        if watch:
            self._watch_stall()

    def _look_later(self) -> None:
        taken = self._taken
        self._deadlines.after(QUICK_SECONDS, lambda: self._look(taken))

    def _look(self, taken: int) -> None:
        """Has others do what is left, if none was taken in the last millisecond."""
        with self._lock:
            stuck = taken == self._taken
            call = self._announce_left() if stuck else _nothing
            self._looking = again = self._left > 0
        call()
        if again:
            self._look_later()

    # In the pool's threads.

    def _next(self) -> _Work | None:
        """Returns what this thread does next; None where it ends."""
        me = threading.get_ident()
        with self._lock:
            if self._left and self._threads - self._blocked <= self._num_threads:
                self._left -= 1
                return self._pop()
            ends = self._is_surplus()
            self._threads -= ends
            self._idle += not ends
        return None if ends else self._wait_for_work(me)

    def _first(self) -> _Work | None:
        """Returns what a new thread does first; it was counted as idle."""
        return self._wait_for_work(threading.get_ident())

    def _wait_for_work(self, me: int) -> _Work | None:
        while True:
            more = self._watch_till_called(me) or self._queue.get()
            with self._lock:
                if more and not self._pending:  # called since this closes
                    continue
                self._idle -= 1
                if not more:
                    self._threads -= 1
                    return None
                return self._pop()

    def _watch_till_called(self, me: int) -> bool:
        """Watches if no other thread does; returns whether this thread was called to work."""
        gate = self._gate
        with self._lock:
            if self._watcher or self._pending or self._closed:
                return False
            self._watcher, gate.called = me, False
        try:
            self._watch(gate)
        finally:
            with self._lock:
                self._watcher = NOBODY
                called = gate.called
        return called

    def _is_surplus(self) -> bool:
        """Whether a thread that has no work is one too many. Holds the lock."""
        waiting = self._nested if self._threads > self._max_threads else None
        left = self._pending if waiting is None else len(waiting)
        surplus = self._threads - self._blocked > self._num_threads
        return surplus and left <= self._idle and not self._closed

    def _pop(self) -> _Work:
        """Returns the work whose turn it is. Holds the lock."""
        self._taken += 1
        self._took_at = time.monotonic()
        if self._nested and not (self._roots and self._is_turn_of_roots()):
            self._in_a_row += 1
            work = self._nested.popleft()
        else:
            self._in_a_row = 0
            work = self._roots.popleft()
        # A thread that was woken for work that another one has done does some of what is left.
        self._left = min(self._left, self._pending)
        return work

    def _is_turn_of_roots(self) -> bool:
        return self._in_a_row >= TURNS and self._threads <= self._max_threads

    def _enter_wait(self) -> None:
        with self._lock:
            self._blocked += 1
            call = self._announce_left()
            grow = self._start if self._reserve() else _nothing
        call()
        grow()

    def _leave_wait(self) -> None:
        with self._lock:
            self._blocked -= 1


@final
class _Thread(PoolThread):
    """One thread of the pool."""

    def __init__(self, pool: Pool, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._pool = pool
        self._waits = 0

    def run(self) -> None:
        pool = self._pool
        work = pool._first()
        while work is not None:
            _run(work)
            del work  # a thread at rest keeps nothing of the last call alive
            work = pool._next()

    def enter_wait(self) -> None:
        self._waits += 1
        if self._waits == 1:
            self._pool._enter_wait()

    def leave_wait(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._pool._leave_wait()


def _nothing(*_: object) -> None:
    pass


def _run(work: _Work) -> None:
    context, func, args = work
    try:
        context.run(func, *args)
    except BaseException:  # the top of a thread's task, SystemExit of user code included
        _logger.exception("work in the pool failed: %r", func)
