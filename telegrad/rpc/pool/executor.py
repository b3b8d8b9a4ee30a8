"""The pool that runs plain user functions, concurrently.

It grows at once when a wait of telegrad's blocks in it, and by one thread when work has waited
20 ms while no thread took any: that one may be what the others wait for, with a lock or a condition
that telegrad cannot see. A thread whose wait is over goes on at once, nothing waits to get back in,
and threads above `num_threads` end when they are idle. The 20 ms are ticked by the agent's
deadlines: there is no polling thread.

One thread that has nothing to do does not wait for work, but reads what comes to this worker: it
leads. A call that it reads it runs itself, with no hop in between. While work has been quick lately
nobody else is woken for more of it: a thread that runs takes that next, and one millisecond later
others are woken if it has not. Threads that take turns at the interpreter's lock take longer.

Why it cannot deadlock: some work has no thread only while `num_threads` others are taken and none
of them waits for telegrad; if one of them has not ended or waited 20 ms later, there is one thread
more. What others wait for (nested calls, callbacks, the library's own work) is taken before what
nobody waits for yet (root calls), and has room where those have none left:

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
from telegrad.rpc.pool.leader import Leader
from telegrad.transport import Gate

__all__ = ["Executor"]

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
# While work takes less than this one thread does it, piece by piece: waking others, who would wait
# for each other at the interpreter's lock, takes longer.
QUICK_SECONDS = 200e-6
SLOW_FROM = 4  # more slow pieces than quick ones lately: the system holds up a few now and then
PACE_SECONDS = 0.001  # after which others are woken if that one thread has not come back

_logger = logging.getLogger(__name__)

_Work: TypeAlias = tuple[contextvars.Context, Callable[..., Any], tuple[Any, ...]]


@final
class Executor:
    """Daemon threads that take work from one queue.

    Args:
        name: The agent's, for the names of the threads.
        num_threads: How many run user code when none of them waits.
        deadlines: Where the 20 ms are ticked.
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
        self._lead: Callable[[Gate, float], None] = _nothing
        self._leave: Callable[[], None] = _nothing
        self._leader = Leader()
        self._num_threads = num_threads
        self._max_threads = max_threads
        self._deadlines = deadlines
        self._new_context = new_context
        self._queue: SimpleQueue[bool] = SimpleQueue()  # one token a piece of work; False: end
        self._lock = threading.Lock()  # guards all below; held for a few instructions
        self._nested: deque[_Work] = deque()
        self._roots: deque[_Work] = deque()
        self._in_a_row = 0  # nested work taken since a root call was
        self._threads = 0
        self._idle = 0  # threads in queue.get(), or on their way to it; the one that leads is too
        self._blocked = 0  # threads inside a wait of telegrad's
        self._unclaimed = 0  # work for which no thread was woken: one that runs takes it
        self._slow = 0  # pieces of work that took long lately, less those that did not
        self._pacing = False  # whether it is looked at each millisecond how the unclaimed goes on
        self._taken = 0
        self._numbers = itertools.count(1)  # of threads, for their names
        self._watching = False
        self._closed = False

    def lead_with(self, lead: Callable[[Gate, float], None], leave: Callable[[], None]) -> None:
        """Says how a thread that has nothing to do reads what comes; before any has.

        Args:
            lead: Has the calling thread read until a gate opens, if it can be had for that; in 0
                seconds it reads what is there.
            leave: Ends that this thread is the one who does; from any thread.
        """
        self._lead, self._leave = lead, leave

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
        return len(self._nested) + len(self._roots) - self._unclaimed

    @property
    def _running(self) -> int:
        """Threads that will take more soon, unless their work takes long."""
        leader = self._leader
        return self._threads - self._idle - self._blocked + (leader.waits and leader.called)

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
            context: Inside which it runs.
            func: What is run.
            *args: Its arguments.
            nested: Whether a call waits for it; else it comes after what others wait for.
        """
        if self._threads >= self._max_threads and self.exhausted(nested=nested):
            return False
        self._enter(self._nested if nested else self._roots, (context, func, args))
        return True

    def _enter(self, queue: deque[_Work], work: _Work) -> None:
        """Decides who does a piece of work."""
        leader = self._leader
        reads = leader.thread == threading.get_ident()
        call: Callable[[], None] | None = None
        with self._lock:
            if self._closed:
                call = self._run_late(work)
            else:
                queue.append(work)
                if reads and leader.waits and not leader.called:
                    call = leader.call()  # it does what it has read
                elif self._slow < SLOW_FROM and self._running:
                    self._unclaimed += 1
                    leader.turns += reads  # and works after that
                    if not self._pacing:
                        self._pacing = True
                        call = self._watch_pace
                else:
                    call = self._find_thread()
        if call is not None:
            call()

    def _run_late(self, work: _Work) -> Callable[[], None]:
        name = f"{self._name}-late"
        return threading.Thread(target=_run, args=(work,), name=name, daemon=True).start

    def close(self) -> None:
        """Lets the threads end once they have done what was submitted; waits for none."""
        with self._lock:
            if self._closed:
                return
            call = self._wake_for_all()
            self._closed = True
            threads = self._threads
            wake = self._leader.call()
        call()
        for _ in range(threads):
            self._queue.put(False)
        wake()

    def _find_thread(self) -> Callable[[], None]:
        """Returns what has another thread do the work that was just entered; holds the lock."""
        if self._leader.is_free and self._claimed >= self._idle:
            return self._leader.call()
        self._queue.put(True)
        return self._grow_or_watch()

    def _grow_or_watch(self) -> Callable[[], None]:
        """Returns what adds a thread, or has the 20 ms ticked, where work has none. Holds the lock."""
        if self._reserve():
            return self._start
        return self._watch if self._needs_watch() else _nothing

    def _wake_for_all(self) -> Callable[[], None]:
        """Wakes a thread for each piece of work that nobody was woken for; as `_find_thread` does."""
        count, self._unclaimed = self._unclaimed, 0
        for _ in range(count):
            self._queue.put(True)
        calls = [self._grow_or_watch() for _ in range(count)]
        if count and self._leader.is_free and self._claimed >= self._idle:
            calls.append(self._leader.call())

        def call() -> None:
            for each in calls:
                each()

        return call

    def _reserve(self, *, stalled: bool = False) -> bool:
        """Counts one more thread if one is needed and allowed; holds the lock."""
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
                self._watch()

    def _needs_watch(self) -> bool:
        if self._watching or self._claimed <= self._idle or self._closed:
            return False
        self._watching = True
        return True

    def _watch(self) -> None:
        taken = self._taken
        self._deadlines.after(STALLED_SECONDS, lambda: self._check(taken))

    def _check(self, taken: int) -> None:
        """Twenty milliseconds later, on the loop."""
        with self._lock:
            self._watching = False
            grow = taken == self._taken and self._reserve(stalled=True)
            watch = self._needs_watch()
        if grow:
            self._start()
        if watch:
            self._watch()

    def _watch_pace(self) -> None:
        taken, turns = self._taken, self._leader.turns
        self._deadlines.after(PACE_SECONDS, lambda: self._check_pace(taken, turns))

    def _check_pace(self, taken: int, turns: int) -> None:
        """A millisecond later, on the loop: quick work goes on, or something holds it up."""
        with self._lock:
            leader_stuck = self._leader.turns == turns
            stuck = leader_stuck and self._taken == taken
            leave = self._leader.stays and leader_stuck
            call = self._wake_for_all() if stuck else _nothing
            if leave:
                self._leader.stays = False
            again = self._pacing = self._unclaimed > 0 or self._leader.stays
        if leave:
            self._leave()
        call()
        if again:
            self._watch_pace()

    # What the threads call.

    def _take(self) -> _Work | None:
        while True:
            if (work := self._take_unclaimed()) is not None:
                return work
            more = self._is_called() or self._queue.get()
            with self._lock:
                if more and not self._pending:  # called since this closes
                    continue
                self._idle -= 1
                if not more:
                    self._threads -= 1
                    return None
                work = self._pop()
                leave = self._ends_stay()
            if leave:
                self._leave()
            return work

    def _take_unclaimed(self) -> _Work | None:
        """Returns a piece of work that nobody was woken for, if there is one."""
        if not self._unclaimed:
            return None
        with self._lock:
            if not self._unclaimed:
                return None
            self._unclaimed -= 1
            self._idle -= 1
            work = self._pop()
            leave = self._ends_stay()
        if leave:
            self._leave()
        return work

    def _next(self, took: float, now: float) -> _Work | None:
        """Returns what a thread does next that has finished its work; None where it ends.

        Args:
            took: Seconds that the work took.
            now: The time.
        """
        leader = self._leader
        stayed = leader.stays and leader.thread == threading.get_ident()
        if stayed and now - leader.looked > PACE_SECONDS:  # now and then it reads what has come
            leader.looked = now
            self._lead(leader, 0)
        work = None
        with self._lock:
            if took > QUICK_SECONDS:
                self._slow = min(self._slow + 1, SLOW_FROM * 2)
            elif self._slow:
                self._slow -= 1
            if self._unclaimed and self._threads - self._blocked <= self._num_threads:
                self._unclaimed -= 1
                leader.turns += stayed
                work = self._pop()
            # Or others have taken over while this thread looked.
            leave = self._ends_stay() if leader.stays else stayed
            ends = work is None and self._is_surplus()
            leave |= ends and leader.let_go()
        if leave:
            self._leave()
        if work is None and not ends:
            return self._take()
        return work

    def _is_surplus(self) -> bool:
        """Counts a thread that has no work out if it is one too many, else as idle. Holds the lock."""
        surplus = self._threads - self._blocked > self._num_threads
        waiting = self._nested if self._threads > self._max_threads else None
        left = self._pending if waiting is None else len(waiting)
        ends = surplus and left <= self._idle and not self._closed
        if ends:
            self._threads -= 1
        else:
            self._idle += 1
        return ends

    def _pop(self) -> _Work:
        """Returns the work whose turn it is; holds the lock."""
        self._taken += 1
        if self._nested and not (self._roots and self._is_turn_of_roots()):
            self._in_a_row += 1
            work = self._nested.popleft()
        else:
            self._in_a_row = 0
            work = self._roots.popleft()
        # Who was woken for work that another has done meanwhile does some that nobody was woken for.
        if self._unclaimed > (left := len(self._nested) + len(self._roots)):
            self._unclaimed = left
        return work

    def _ends_stay(self) -> bool:
        """Whether a leader that works is to leave the sockets, as work is slow. Holds the lock."""
        leave = self._leader.stays and not self._unclaimed and self._slow >= SLOW_FROM
        if leave:
            self._leader.stays = False
        return leave

    def _is_called(self) -> bool:
        """Leads, if nobody does, until there is work; whether that is this thread's.

        When more has come than one piece it goes on to lead while it does all that, if that is
        quick, and after it; before it does what may take long it leaves the sockets to the loop.
        """
        leader = self._leader
        with self._lock:
            leads = not (leader.is_taken() or self._pending or self._closed)
            leave = not leads and leader.let_go()
            if leads:
                leader.begin()
        if leave:
            self._leave()
        if not leads:
            return False
        try:
            self._lead(leader, math.inf)
        finally:
            with self._lock:
                leader.stays = leader.end() and self._unclaimed > 0
                called, leave = leader.is_open(), not leader.stays
            if leave:
                self._leave()
        return called

    def _is_turn_of_roots(self) -> bool:
        return self._in_a_row >= TURNS and self._threads <= self._max_threads

    def _enter_wait(self) -> None:
        with self._lock:
            self._blocked += 1
            leave = self._leader.let_go()
            if self._unclaimed and not self._running:
                call = self._wake_for_all()
            else:
                call = self._start if self._reserve() else _nothing
        if leave:
            self._leave()
        call()

    def _leave_wait(self) -> None:
        with self._lock:
            self._blocked -= 1


@final
class _Thread(PoolThread):
    """One thread of the pool."""

    def __init__(self, executor: Executor, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._executor = executor
        self._waits = 0

    def run(self) -> None:
        executor = self._executor
        work = executor._take()
        while work is not None:
            began = time.monotonic()
            _run(work)
            del work  # a thread at rest keeps nothing of the last call alive
            now = time.monotonic()
            work = executor._next(now - began, now)

    def enter_wait(self) -> None:
        self._waits += 1
        if self._waits == 1:
            self._executor._enter_wait()

    def leave_wait(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._executor._leave_wait()


def _nothing(*_: object) -> None:
    pass


def _run(work: _Work) -> None:
    context, func, args = work
    try:
        context.run(func, *args)
    except BaseException:  # the top of a thread's task, SystemExit of user code included
        _logger.exception("work in the pool failed: %r", func)
