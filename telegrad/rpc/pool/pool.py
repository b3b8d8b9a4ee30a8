"""The pool that runs plain user functions, concurrently.

It grows at once when a wait of telegrad's blocks in it. It grows by one thread when work has waited
20 ms while no thread took any: the others may wait for that work, with a lock or a condition that
telegrad cannot see. A thread whose wait is over goes on at once, without a wait to get back in.
Threads above `num_threads` end when they are idle. `roster` decides all that. The pool's looks are
ticked by the agent's deadlines: there is no polling thread.

One idle thread watches the sockets of this worker (`watch`). It does the work that it submits while
it watches by itself, with no wake-up in between.
"""

from __future__ import annotations

import contextvars
import itertools
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, final

from telegrad.critical import critical
from telegrad.rpc.future.waits import PoolThread
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.roster import QUICK_SECONDS, Do, Rest, ThreadRoster, Todo, Work
from telegrad.transport import WaitGate, get_logger, start_thread

# At this many threads a process is in trouble that more threads do not cure (each has a stack).
MAX_THREADS = 1000
# The longest wait of work that no thread takes before one more thread starts: longer than most
# calls run, shorter than anyone notices.
STALLED_SECONDS = 0.02

_logger = get_logger(__name__)


@final
class Pool:
    """Daemon threads that take work from one queue.

    Args:
        name: The agent's name, for the names of the threads.
        num_threads: The number of threads that run user code when none of them waits.
        deadlines: The deadlines that tick the looks.
        new_context: Makes the Context of work that is submitted without one.
        watch: The work of one idle thread until a gate opens. It may return early, where there is
            nothing to watch.
        max_threads: The number of threads from which root calls are refused; nested ones from 4
            times as many.

    Attributes:
        new_context: Makes the Context of work that is submitted without one.
        shortage: The reason why the last thread that was wanted did not start; empty if it did.
    """

    def __init__(
        self,
        name: str,
        num_threads: int,
        deadlines: Deadlines,
        new_context: Callable[[], contextvars.Context],
        watch: Callable[[WaitGate], None] | None = None,
        max_threads: int = MAX_THREADS,
    ) -> None:
        self._name = name
        self._watch = watch
        self._max_threads = max_threads
        self._deadlines = deadlines
        self.new_context = new_context
        self.shortage = ""
        self._queue: SimpleQueue[bool] = SimpleQueue()  # a token wakes a thread; False ends it
        self._numbers = itertools.count(1)  # of threads, for their names
        self._roster_lock = threading.Lock()  # guards the roster; held for a few instructions
        self._roster = ThreadRoster(num_threads, max_threads)

    def exhausted(self, *, nested: bool = False) -> bool:
        """Returns True if no thread is free for one more call, and none may be added."""
        return self._roster.exhausted(nested=nested)

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._roster.threads

    @property
    def busy(self) -> int:
        """The number of pieces of work that wait or run."""
        return self._roster.waiting + self._roster.threads - self._roster.idle

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in a thread, in a Context of its own; its exceptions are logged.

        From any thread. After `close` each piece of work still runs, in a thread of its own.
        """
        self.submit_call(self.new_context(), func, *args, nested=True, bounded=False)

    def submit_call(
        self,
        context: contextvars.Context,
        func: Callable[..., Any],
        *args: Any,
        nested: bool,
        bounded: bool = True,
    ) -> bool:
        """Does what `submit` does, inside a Context; returns False if it was refused.

        Args:
            context: The Context in which it runs.
            func: The function.
            *args: Its arguments.
            nested: True if a call waits for it; else it runs after work that others wait for.
            bounded: True if it is refused where no thread is free and none may be added; or where
                all wait, and the system starts no further one (`shortage`).
        """
        work, roster, todo = (context, func, args), self._roster, None
        if bounded and roster.threads >= self._max_threads and self.exhausted(nested=nested):
            return False
        with critical.section, self._roster_lock:
            if not roster.closed:
                me, now = threading.get_ident(), time.monotonic()
                todo = roster.enter(work, nested=nested, thread=me, now=now)
        if todo is None:
            late = threading.Thread(target=_run, args=(work,), name=f"{self._name}-late")
            late.daemon = True
            start_thread(late)
            return True
        # Where no thread could start, and all that run wait, nothing would take the work until its
        # time is over: it is refused now, and `shortage` says why.
        return not todo or self._act(todo) or not (bounded and self._withdraw(work))

    def _withdraw(self, work: Work) -> bool:
        """Takes work back that no thread can take; returns False if one can, or did."""
        with critical.section, self._roster_lock:
            return self._roster.withdraw(work)

    def close(self) -> None:
        """Ends the threads once they have done the submitted work; waits for none."""
        with critical.section, self._roster_lock:
            if self._roster.closed:
                return
            todo = self._roster.close()
            threads = self._roster.threads
        self._act(todo)
        # Behind the tokens for work, so that all that was submitted is done first.
        for _ in range(threads):
            self._queue.put(False)
        self._call_watcher()

    def _act(self, todo: Todo) -> bool:
        """Does the actions that the roster returned, without its lock.

        Returns:
            False if no thread could be started.
        """
        started = True
        for do in todo:
            if do is Do.WAKE:
                self._queue.put(True)
            elif do is Do.CALL:
                self._call_watcher()
            elif do is Do.START:
                started = self._start()
            elif do is Do.TICK:
                self._deadlines.after(STALLED_SECONDS, self._later(self._roster.tick))
            else:
                self._deadlines.after(QUICK_SECONDS, self._later(self._roster.look))
        return started

    def _later(self, event: Callable[[int], Todo]) -> Callable[[], None]:
        taken = self._roster.taken

        def look() -> None:
            with critical.section, self._roster_lock:
                todo = event(taken)
            self._act(todo)

        return look

    def _call_watcher(self) -> None:
        if (wake := self._roster.gate.wake) is not None:
            wake()

    def _start(self) -> bool:
        name = f"{self._name}-pool-{next(self._numbers)}"
        try:
            start_thread(PoolThread(self._work, self._begin_wait, self._end_wait, name))
        except RuntimeError as error:  # the system allows no more threads; those that run go on
            with critical.section, self._roster_lock:
                self._roster.end()
                todo = self._roster.needs_tick()
            if not self.shortage:  # it is tried again and again
                _logger.warning("the pool of %s cannot grow: %s", self._name, error)
            self.shortage = str(error)
            self._act(todo)
            return False
        self.shortage = ""
        return True

    # In the pool's threads.

    def _work(self) -> None:
        took: list[float] = []
        work = self._next(took)
        while work is not None:
            _run(work)
            del work  # a thread at rest keeps nothing of the last call alive
            work = self._next(took)

    def _next(self, took: list[float]) -> Work | None:
        """Returns the next work of a thread; None where the thread ends.

        Args:
            took: The time at which it took its work, and the pieces that all had taken by then; set
                to those of the next. Empty if the thread has just started.
        """
        roster, watch, me = self._roster, self._watch, threading.get_ident()
        if took:
            now = time.monotonic()
            with critical.section, self._roster_lock:
                rest = roster.rest(now - took[0], roster.taken - int(took[1]))
                if rest is Rest.NOT:
                    work = roster.take(now)
                    took[:] = now, roster.taken
                    return work
            if rest is Rest.OVER:
                return None
        while True:  # it is idle
            called = False
            with critical.section, self._roster_lock:
                watches = watch is not None and roster.begin_watch(me)
            if watches and watch is not None:
                try:
                    watch(roster.gate)
                finally:
                    with critical.section, self._roster_lock:
                        called = roster.end_watch()
            # A token, or a call of the watcher, says that there may be work. Another thread may
            # have taken it since, and this one then rests on.
            more = called or self._queue.get()
            with critical.section, self._roster_lock:
                if more and (work := roster.take(now := time.monotonic())) is not None:
                    took[:] = now, roster.taken
                    return work
                if not more:
                    roster.end()
                    return None

    def _begin_wait(self) -> None:
        with critical.section, self._roster_lock:
            todo = self._roster.begin_wait()
        self._act(todo)

    def _end_wait(self) -> None:
        with critical.section, self._roster_lock:
            self._roster.end_wait()


def _run(work: Work) -> None:
    context, func, args = work
    try:
        context.run(func, *args)
    except BaseException:  # the top of a thread's task, SystemExit of user code included
        _logger.exception("work in the pool failed: %r", func)
