"""A gate that one thread waits at until any other opens it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeAlias, final

from telegrad.rpc.base.served_call import last_served_call
from telegrad.rpc.future.waits import Awaited, PoolThread, Wait
from telegrad.transport import LONGEST_SLEEP

Drive: TypeAlias = "Callable[[Gate, float], None]"


@final
class Gate:
    """A gate that is opened once, for one thread; a bare lock: an Event costs ten times as much.

    Attributes:
        shut: True until it is opened.
        wake: Wakes the thread when it waits for something else at this moment.
    """

    __slots__ = ("_cancelled", "_lock", "shut", "wake")

    def __init__(self) -> None:
        self._cancelled = False
        self._lock = threading.Lock()
        self._lock.acquire()
        self.shut = True
        self.wake: Callable[[], None] | None = None

    def open(self) -> None:
        """Lets the thread go on; in any thread, idempotent."""
        self.shut = False
        try:  # noqa: SIM105 - every reply opens one, and `suppress` costs as much as all the rest
            self._lock.release()
        except RuntimeError:  # it is open: the waiting thread's call was cancelled
            pass
        if (wake := self.wake) is not None:
            wake()

    def wait(
        self, limit: float, future: Awaited | None = None, *, drive: Drive | None = None
    ) -> bool:
        """Blocks until it is open; returns True if that happened within `limit` seconds.

        Outside served calls and the pool it costs next to nothing. A wait of a served call ends
        when that call is cancelled, unless the future is completed until then.

        Args:
            limit: Seconds; `math.inf` for no limit.
            future: The future that opens it.
            drive: The work of this thread meanwhile; called with the gate and the seconds.

        Raises:
            CallCancelledError: The call that this thread serves was cancelled.
            CallTimeoutError: Its time is over.
        """
        thread = threading.current_thread()
        pooled = thread if isinstance(thread, PoolThread) else None
        served = last_served_call()  # a thread may outlive the coroutine that it works for
        if served is not None:
            served.let_others_in()
            served.begins(self)
            if served.cancelled:  # perhaps before it knew of this wait
                self.cancel()
        if pooled is not None:
            outer = pooled.wait
            pooled.wait = Wait((future,)) if future is not None and limit == math.inf else None
            pooled.enter_wait()
        opened = False
        try:
            if drive is not None:
                started = time.monotonic()
                drive(self, limit)
                limit -= time.monotonic() - started
            opened = not self.shut or self._sleep(limit)
        finally:
            if pooled is not None:
                pooled.leave_wait()
                pooled.wait = outer
            if served is not None:
                served.waits.discard(self)
            if future is not None and (self._cancelled or not opened) and not future.done():
                future._forget(self.open)
        if served is not None and self._cancelled and (future is None or not future.done()):
            served.check()
        return opened

    def cancel(self) -> bool:
        """Opens it, since the call that the waiting thread serves was cancelled."""
        self._cancelled = True
        self.open()
        return True

    def _sleep(self, limit: float) -> bool:
        ends, nap = time.monotonic() + limit, min(limit, LONGEST_SLEEP)
        while not self._lock.acquire(timeout=max(0.0, nap)):
            if (limit := ends - time.monotonic()) <= 0:
                return False
            # Signals are the main thread's alone. Of thousands of nested calls each thread that
            # woke every second would take the interpreter's lock.
            main = threading.current_thread() is threading.main_thread()
            nap = min(limit, LONGEST_SLEEP if main else threading.TIMEOUT_MAX)
        return True
