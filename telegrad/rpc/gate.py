"""A gate that one thread waits at until any other opens it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias, final

from telegrad.rpc.blocking import blocking

if TYPE_CHECKING:
    from telegrad.rpc.future import Future

__all__ = ["Drive", "Gate"]

Drive: TypeAlias = "Callable[[Gate, float], None]"


@final
class Gate:
    """Opened once, waited at by one thread; a bare lock, since an Event costs ten times as much."""

    __slots__ = ("_lock", "_wake")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._wake: Callable[[], None] | None = None

    def is_open(self) -> bool:
        """Tells whether it was opened."""
        return not self._lock.locked()

    def wake_with(self, wake: Callable[[], None] | None) -> None:
        """Says what wakes the thread when it waits for something else at this moment."""
        self._wake = wake

    def open(self) -> None:
        """Lets the thread go on; in any thread, idempotent."""
        try:  # noqa: SIM105 - every reply opens one, and `suppress` costs as much as all the rest
            self._lock.release()
        except RuntimeError:  # it is open: the call was cancelled in which the thread waits
            pass
        if (wake := self._wake) is not None:
            wake()

    def wait(
        self,
        limit: float,
        *futures: Future[Any],
        first_of: Collection[Future[Any]] = (),
        drive: Drive | None = None,
    ) -> bool:
        """Blocks until it is open; tells whether that came true within `limit` seconds.

        Args:
            limit: `math.inf` for no limit.
            futures: What is waited for, where all of them open the gate.
            first_of: What the first of opens it; looked at by others while this waits.
            drive: What this thread does meanwhile, given the gate and the seconds.

        Raises:
            CallCancelledError: The call that this thread serves was cancelled.
            CallTimeoutError: Its time is over.
            AgentForkedError: A future belongs to the parent of this process.
        """
        by_itself = limit < math.inf or not (futures or first_of)
        try:
            with blocking(self.open, *futures, ends_by_itself=by_itself, first_of=first_of):
                if drive is not None:
                    started = time.monotonic()
                    drive(self, limit)
                    limit = max(0.0, limit - (time.monotonic() - started))
                return self._lock.acquire(timeout=-1 if limit > threading.TIMEOUT_MAX else limit)
        except BaseException:
            for future in futures:
                future._forget(self.open)
            raise
