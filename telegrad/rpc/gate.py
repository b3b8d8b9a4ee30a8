"""A gate that one thread waits at until any other opens it."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, final

from telegrad.rpc.blocking import blocking

if TYPE_CHECKING:
    from telegrad.rpc.future import Future

__all__ = ["Gate"]


@final
class Gate:
    """Opened once, waited at by one thread; a bare lock, since an Event costs ten times as much."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Lets the thread go on; in any thread, idempotent."""
        try:  # noqa: SIM105 - every reply opens one, and `suppress` costs as much as all the rest
            self._lock.release()
        except RuntimeError:  # it is open: the call was cancelled in which the thread waits
            pass

    def wait(
        self, limit: float, *futures: Future[Any], first_of: Collection[Future[Any]] = ()
    ) -> bool:
        """Blocks until it is open; tells whether that came true within `limit` seconds.

        Args:
            limit: `math.inf` for no limit.
            futures: What is waited for, where all of them open the gate.
            first_of: What the first of opens it; looked at by others while this waits.

        Raises:
            CallCancelledError: The call that this thread serves was cancelled.
            CallTimeoutError: Its time is over.
            AgentForkedError: A future belongs to the parent of this process.
        """
        by_itself = limit < math.inf or not (futures or first_of)
        try:
            with blocking(self.open, *futures, ends_by_itself=by_itself, first_of=first_of):
                return self._lock.acquire(timeout=-1 if limit > threading.TIMEOUT_MAX else limit)
        except BaseException:
            for future in futures:
                future._forget(self.open)
            raise
