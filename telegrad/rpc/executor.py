"""The pool that runs plain user functions, concurrently.

It grows at once when a wait of telegrad's blocks in it, and by one thread when work has waited
20 ms while no thread took any: that one may be what the others wait for, with a lock or a condition
that telegrad cannot see. A thread whose wait is over goes on at once, nothing waits to get back in,
and threads above `num_threads` end when they are idle. The 20 ms are ticked by the agent's
deadlines: there is no polling thread.

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
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, final

from telegrad.rpc.blocking import PoolThread
from telegrad.rpc.deadlines import Deadlines

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
        self._idle = 0  # threads in queue.get(), or on their way to it
        self._blocked = 0  # threads inside a wait of telegrad's
        self._taken = 0
        self._started = 0
        self._watching = False
        self._closed = False

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

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in a thread, in a Context of its own. From any thread."""
        self.submit_in(self._new_context(), func, *args)

    def submit_in(self, context: contextvars.Context, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in a thread, inside `context`; what it raises is logged.

        After `close` each piece of work still runs, in a thread of its own.
        """
        self._enter(self._nested, (context, func, args))

    def submit_root(
        self, context: contextvars.Context, func: Callable[..., Any], *args: Any
    ) -> None:
        """Does what `submit_in` does, for a root call: it comes after what others wait for."""
        self._enter(self._roots, (context, func, args))

    def _enter(self, queue: deque[_Work], work: _Work) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                queue.append(work)
                self._queue.put(True)
                grow = self._reserve()
                watch = self._needs_watch()
        if closed:
            threading.Thread(
                target=_run, args=(work,), name=f"{self._name}-late", daemon=True
            ).start()
            return
        if grow:
            self._start()
        if watch:
            self._watch()

    def close(self) -> None:
        """Lets the threads end once they have done what was submitted; waits for none."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads = self._threads
        for _ in range(threads):
            self._queue.put(False)

    def _reserve(self, *, stalled: bool = False) -> bool:
        """Counts one more thread if one is needed and allowed; holds the lock."""
        if self._pending <= self._idle or self._closed:
            return False
        full = self._threads >= self._max_threads
        if full and (len(self._nested) <= self._idle or self.exhausted(nested=True)):
            return False
        if not stalled and self._threads - self._blocked >= self._num_threads:
            return False
        self._threads += 1
        self._idle += 1
        self._started += 1
        return True

    def _start(self) -> None:
        try:
            _Thread(self, f"{self._name}-pool-{self._started}").start()
        except RuntimeError as error:  # the system gives no more; those that run go on
            with self._lock:
                self._threads -= 1
                self._idle -= 1
                watch = self._needs_watch()
            _logger.warning("the pool of %s cannot grow: %s", self._name, error)
            if watch:
                self._watch()

    def _needs_watch(self) -> bool:
        if self._watching or self._pending <= self._idle or self._closed:
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

    # What the threads call.

    def _take(self) -> _Work | None:
        more = self._queue.get()
        with self._lock:
            self._idle -= 1
            if not more:
                self._threads -= 1
                return None
            self._taken += 1
            if self._nested and not (self._roots and self._is_turn_of_roots()):
                self._in_a_row += 1
                return self._nested.popleft()
            self._in_a_row = 0
            return self._roots.popleft()

    def _is_turn_of_roots(self) -> bool:
        return self._in_a_row >= TURNS and self._threads <= self._max_threads

    def _goes_on(self) -> bool:
        """Whether a thread that has finished its work takes more, or ends."""
        with self._lock:
            surplus = self._threads - self._blocked > self._num_threads
            waiting = self._nested if self._threads > self._max_threads else None
            left = self._pending if waiting is None else len(waiting)
            if surplus and left <= self._idle and not self._closed:
                self._threads -= 1
                return False
            self._idle += 1
            return True

    def _enter_wait(self) -> None:
        with self._lock:
            self._blocked += 1
            grow = self._reserve()
        if grow:
            self._start()

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
        while True:
            work = executor._take()
            if work is None:
                return
            _run(work)
            del work  # a thread at rest keeps nothing of the last call alive
            if not executor._goes_on():
                return

    def enter_wait(self) -> None:
        self._waits += 1
        if self._waits == 1:
            self._executor._enter_wait()

    def leave_wait(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._executor._leave_wait()


def _run(work: _Work) -> None:
    context, func, args = work
    try:
        context.run(func, *args)
    except BaseException:  # the top of a thread's task, SystemExit of user code included
        _logger.exception("work in the pool failed: %r", func)
