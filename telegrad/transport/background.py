"""A thread that runs functions in order, while there are any: work that its thread must not do.

put-off verbs    of code that interrupts a critical section (`critical`)
log records      of telegrad's loop, and of threads that move messages for all (`log`)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import final

START_SECONDS = 0.25  # after which a thread is asked for again, where there was none to be had
IDLE_SECONDS = 1.0  # without work, after which the thread ends; the next function starts another


@final
class BackgroundThread:
    """Runs functions in the order in which they come. Any code may add one: nothing is locked.

    Args:
        name: The thread's name.
        start_soon: Calls a function in a thread that holds no lock.
        start_later: The same after so many seconds; called in that thread.
        failed: Hears the exception of a function.
        most: The most functions that wait; more of them push out the oldest.
    """

    def __init__(
        self,
        name: str,
        start_soon: Callable[[Callable[[], None]], None],
        start_later: Callable[[float, Callable[[], None]], object],
        failed: Callable[[BaseException], None],
        most: float,
    ) -> None:
        self._name = name
        self._start_soon = start_soon
        self._start_later = start_later
        self._failed = failed
        self._most = most
        # Its `put` may be interrupted by another `put` of the same thread.
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._turn = threading.Lock()  # held by the thread that runs; others only ask
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def put(self, function: Callable[[], object]) -> None:
        """Has a function run soon; never blocks."""
        if self._queue.qsize() >= self._most:
            try:
                self._queue.get_nowait()
                self._dropped += 1
            except Empty:
                pass
        self._queue.put(function)
        if not self._turn.locked():
            self._start_soon(self._start)

    def count_dropped(self) -> int:
        """Returns the number of functions that were pushed out since the last call of this."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def flush(self, timeout: float) -> None:
        """Waits until all that was put has run, for so many seconds at most; the thread ends."""
        self._queue.put(None)
        until = time.monotonic() + timeout
        while self._turn.locked() and (left := until - time.monotonic()) > 0:
            thread = self._thread  # the one at work: another one may have begun meanwhile
            if thread is threading.current_thread():
                return
            if thread is not None:
                thread.join(left)
        self._run()  # what came too late for a thread to be started

    def _start(self) -> None:
        if not self._turn.locked():
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                self._start_later(START_SECONDS, self._start)

    def _run(self) -> None:
        # A function that comes while the turn is given back is seen here, or starts a thread.
        while not self._queue.empty() and self._turn.acquire(blocking=False):
            self._thread = threading.current_thread()
            try:
                self._run_all()
            finally:
                self._thread = None
                self._turn.release()

    def _run_all(self) -> None:
        while True:
            try:
                function = self._queue.get(timeout=IDLE_SECONDS)
            except Empty:
                return
            if function is None:
                return
            try:
                function()
            except BaseException as error:  # the top of a thread's task
                self._failed(error)
            del function  # a thread at rest keeps nothing alive
