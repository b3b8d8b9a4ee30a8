"""The facts of a served call for the function that serves it."""

from __future__ import annotations

import time
from typing import final

from telegrad.rpc.base.served_call import ServedCall, last_served_call
from telegrad.types import WorkerInfo


@final
class CurrentCall:
    """The call that this code serves, as seen by the function; its answers change with time.

    It may be kept and handed to other threads. All its methods may be called from any thread.

    Example:
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> def caller() -> str:  # runs on worker1
        ...     return rpc.current_call().caller.name
        >>> with Cluster(2) as cluster:
        ...     cluster.call(0, rpc.rpc_sync, "worker1", caller)
        'worker0'
    """

    __slots__ = ("_served",)

    def __init__(self, served: ServedCall) -> None:
        self._served = served

    @property
    def caller(self) -> WorkerInfo:
        """The worker that called."""
        return self._served.caller

    @property
    def function(self) -> str:
        """The name of the function that was called."""
        return self._served.record.function

    @property
    def cancelled(self) -> bool:
        """True if nobody wants the value any more: cancelled, expired, or the caller is lost."""
        return self._served.cancelled

    @property
    def remaining(self) -> float:
        """The seconds that are left, 0 when none are; `math.inf` for a call without a deadline."""
        return max(self._served.deadline - time.monotonic(), 0.0)

    def check(self) -> None:
        """Returns if the value is still wanted; for the loop of a long computation.

        Raises:
            CallTimeoutError: The call's time is over.
            CallCancelledError: The caller has cancelled the call, or is lost.
        """
        self._served.check()

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled else f"{self.remaining:.3g} s left"
        return f"<CurrentCall of {self.function} by {self.caller.name!r}: {state}>"


def current_call() -> CurrentCall | None:
    """Returns the call that this code serves; None where it serves none.

    It is found in the function itself, plain or `async def`, and in code that runs in a copy of its
    Context: `rpc.to_thread`, `asyncio.to_thread`, tasks that it makes, callbacks that it adds. Code
    that outlives its call serves it no more once the call has its reply, unless it was cancelled
    before.

    Example:
        >>> current_call() is None  # called by no worker
        True
    """
    served = last_served_call()
    return CurrentCall(served) if served is not None else None
