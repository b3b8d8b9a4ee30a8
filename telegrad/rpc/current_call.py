"""What a function that another worker called may ask about that call."""

from __future__ import annotations

import time
from typing import final

from telegrad.rpc.served_call import ServedCall, last_served_call
from telegrad.types import WorkerInfo

__all__ = ["CurrentCall", "current_call"]


@final
class CurrentCall:
    """The call that this code serves, as seen by the function; its answers change with time.

    It may be kept and handed to other threads. All of it from any thread.
    """

    __slots__ = ("_served",)

    def __init__(self, served: ServedCall) -> None:
        self._served = served

    @property
    def caller(self) -> WorkerInfo:
        """Who called."""
        return self._served.caller

    @property
    def function(self) -> str:
        """What was called."""
        return self._served.record.function

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the value any more: cancelled, expired, or the caller is lost."""
        return self._served.cancelled

    @property
    def remaining(self) -> float:
        """Seconds that are left, 0 when none are; `math.inf` for a call without a deadline."""
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

    In the function itself, plain or `async def`, and in what runs in a copy of its Context:
    `rpc.to_thread`, `asyncio.to_thread`, tasks that it makes, callbacks that it adds. What a call
    leaves behind serves it no more once that has its reply, unless it was cancelled before.

    Example:
        >>> current_call() is None  # called by no worker
        True
    """
    served = last_served_call()
    return CurrentCall(served) if served is not None else None
