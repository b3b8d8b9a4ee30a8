"""The call that this code serves: its deadline and depth, which nested calls inherit.

What a call leaves behind (a task, a thread that copied its context) still finds the ServedCall,
but no longer `active`, and so inherits nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import final

from telegrad.rpc.interceptor import CallRecord
from telegrad.types import WorkerInfo

__all__ = ["ServedCall", "current_served_call", "enter_served_call", "inherited"]


@final
class ServedCall:
    """The callee's end of one call.

    Attributes:
        caller: Who called.
        number: The call's id, drawn by the caller.
        record: What interceptors keep between the request and its reply.
        deadline: On the clock of `time.monotonic`; `math.inf` without one.
        depth: Length of the call tree above it.
        active: Whether it still runs; false from the moment its reply is made.
        cancelled: Whether the caller gave it up.
        release: Gives back the bytes that it was admitted with; None where it holds none.
    """

    __slots__ = (
        "__weakref__",
        "active",
        "caller",
        "cancel_task",
        "cancelled",
        "deadline",
        "depth",
        "number",
        "record",
        "release",
    )

    def __init__(
        self, caller: WorkerInfo, number: int, record: CallRecord, time_left: float, depth: int
    ) -> None:
        self.caller = caller
        self.number = number
        self.record = record
        self.deadline = time.monotonic() + time_left
        self.depth = depth
        self.active = True
        self.cancelled = False
        self.cancel_task: Callable[[], None] | None = None
        self.release: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Marks it as given up; a coroutine is cancelled, a thread finishes for nobody."""
        self.cancelled = True
        cancel_task = self.cancel_task
        if cancel_task is not None:
            cancel_task()

    def let_others_in(self) -> None:
        """Gives back what it was admitted with: it ended, or waits, perhaps for those others."""
        release, self.release = self.release, None
        if release is not None:
            release()

    def can_cancel(self, cancel_task: Callable[[], None]) -> None:
        """Says how its coroutine is cancelled, once that has started."""
        self.cancel_task = cancel_task
        if self.cancelled:
            cancel_task()


_served: ContextVar[ServedCall | None] = ContextVar("telegrad_served_call", default=None)


def current_served_call() -> ServedCall | None:
    """Returns the call that this code serves, None where it serves none (any more)."""
    served = _served.get()
    return served if served is not None and served.active else None


def enter_served_call(served: ServedCall) -> Token[ServedCall | None]:
    """Marks the current context, made for this call, as serving it."""
    return _served.set(served)


def inherited() -> tuple[float, int]:
    """Returns the seconds that the served call leaves to a nested one, and that one's depth."""
    served = current_served_call()
    if served is None:
        return math.inf, 0
    return served.deadline - time.monotonic(), served.depth + 1
