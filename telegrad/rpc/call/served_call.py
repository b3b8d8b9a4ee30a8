"""The call that this code serves: its deadline and depth, which nested calls inherit.

What a call leaves behind (a task, a thread that copied its context) still finds the ServedCall,
but no longer `active`, and so inherits nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Protocol, final

from telegrad.errors import CallCancelledError, CallTimeoutError, TelegradError
from telegrad.rpc.call.interceptor import CallRecord
from telegrad.types import WorkerInfo

__all__ = [
    "Cancellable",
    "CurrentCall",
    "ServedCall",
    "current_call",
    "current_served_call",
    "enter_served_call",
    "inherited",
    "last_served_call",
    "left_by",
    "still_runs",
]


class Cancellable(Protocol):
    """What ends when the call that made it is cancelled; a Future is one, and a blocking wait."""

    def cancel(self) -> bool:
        """Ends it, unless it has ended; idempotent, from any thread, never blocks."""


@final
class ServedCall:
    """For the library: the callee's end of one call.

    Attributes:
        caller: Who called.
        number: The call's id, drawn by the caller.
        kind: That of its request.
        record: What interceptors keep between the request and its reply.
        came: When it arrived, on the clock of `time.monotonic`.
        began: When its function was called; None before.
        deadline: On the clock of `time.monotonic`; `math.inf` without one.
        depth: Length of the call tree above it.
        active: Whether it still runs; false from the moment its reply is made.
        cancelled: Whether the caller gave it up, or is lost.
        expired: Whether the caller did so because the deadline passed.
        nested: What it has called and what is not answered yet. Added to and taken from under the
            lock of the call table; one agent's, or several agents': each operation is atomic.
        waits: The blocking waits of its threads; each operation is atomic.
        release: Gives back the bytes that it was admitted with; None where it holds none.
        items: Of a stream: how many it has sent.
        runner: What it ends by: a thread or task, or the future that its value will be of; see
            `blocking`. None before it starts.
        siblings: The calls of its caller that are served, by number; it is one of them while it is.
    """

    __slots__ = (
        "__weakref__",
        "_hooks",
        "active",
        "began",
        "caller",
        "came",
        "cancelled",
        "deadline",
        "depth",
        "expired",
        "items",
        "kind",
        "nested",
        "number",
        "record",
        "release",
        "runner",
        "siblings",
        "waits",
    )

    def __init__(
        self, caller: WorkerInfo, number: int, record: CallRecord, time_left: float, depth: int
    ) -> None:
        self.caller = caller
        self.number = number
        self.record = record
        self.kind = record.function  # until it is known what is called
        self.came = time.monotonic()
        self.began: float | None = None
        self.deadline = self.came + time_left
        self.depth = depth
        self.active = True
        self.cancelled = False
        self.expired = False
        self.nested: set[Cancellable] = set()
        self.waits: set[Cancellable] = set()
        self.release: Callable[[], None] | None = None
        self.items = 0
        self.runner: object = None
        self.siblings: dict[int, ServedCall] = {}
        self._hooks: list[Callable[[], None]] = []

    def cancel(self, *, expired: bool = False) -> None:
        """Marks it as given up, cancels its coroutine, what it has called, and what it waits for.

        A thread that runs it finishes for nobody. From any thread; idempotent.
        """
        if not self.active:
            return
        self.expired = self.expired or expired
        self.cancelled = True
        self._run_hooks()  # first: what awaits a nested call is to see its own cancellation
        for nested in list(self.nested):
            nested.cancel()
        for wait in list(self.waits):  # last: who waits for a nested call hears what became of it
            wait.cancel()

    def on_cancel(self, hook: Callable[[], None]) -> None:
        """Has `hook` called once when it is cancelled, or now if it was; it must not block."""
        self._hooks.append(hook)
        if self.cancelled:
            self._run_hooks()

    def end(self) -> None:
        """Notes that its reply is being made: what it leaves behind inherits nothing."""
        self.active = False
        self.runner = None
        if self._hooks and not self.cancelled:  # else whoever cancels it runs them, each one
            self._hooks.clear()

    def given_up(self, worker: str) -> TelegradError:
        """Returns what a call that was cancelled ends with on this worker."""
        function = self.record.function
        if self.expired or self.deadline <= time.monotonic():
            return CallTimeoutError(
                f"{function} was given up by {self.caller.name!r} before its value was there on "
                f"{worker!r}: its time was over",
                worker=worker,
                function=function,
                phase="serving",
            )
        return CallCancelledError(
            f"{function} was cancelled by {self.caller.name!r} before its value was there on "
            f"{worker!r}"
        )

    def check(self) -> None:
        """Returns if its value is still wanted.

        Raises:
            CallTimeoutError: Its time is over.
            CallCancelledError: The caller has cancelled it, or is lost.
        """
        function, caller = self.record.function, self.caller.name
        if self.expired or self.deadline <= time.monotonic():
            raise CallTimeoutError(
                f"{function} has no time left; {caller!r}, who called it, has given it up",
                function=function,
                phase="serving",
            )
        if self.cancelled:
            raise CallCancelledError(
                f"{function} was cancelled by {caller!r}, or {caller!r} is lost: nobody waits for "
                "its value"
            )

    def runs_by(self, runner: object) -> None:
        """Notes what it ends by; the last one counts."""
        if self.active:
            self.runner = runner

    def let_others_in(self) -> None:
        """Gives back what it was admitted with: it ended, or waits, perhaps for those others."""
        release, self.release = self.release, None
        if release is not None:
            release()

    def _run_hooks(self) -> None:
        hooks = self._hooks
        while hooks:
            try:
                hook = hooks.pop()  # atomic: whoever has it calls it, once
            except IndexError:
                return
            hook()


_served: ContextVar[ServedCall | None] = ContextVar("telegrad_served_call", default=None)


def current_served_call() -> ServedCall | None:
    """For the library: returns the call that this code serves, None where it serves none."""
    served = _served.get()
    return served if served is not None and served.active else None


# Returns that call even when it has its reply; for who looks at `active` himself.
innermost_served_call: Callable[[], ServedCall | None] = _served.get


def still_runs(parent: ServedCall | None) -> bool:
    """Tells whether what was made by `parent`, or by no call, was made by one that still runs."""
    return parent is not None and parent.active


def last_served_call() -> ServedCall | None:
    """Returns the call that this code serves, or has served when that was cancelled."""
    served = _served.get()
    return served if served is not None and (served.active or served.cancelled) else None


# Marks the current Context, made for this call, as serving it; each call does so first.
enter_served_call: Callable[[ServedCall], Token[ServedCall | None]] = _served.set


def inherited() -> tuple[float, int]:
    """Returns the seconds that the served call leaves to a nested one, and that one's depth."""
    return left_by(current_served_call())


def left_by(served: ServedCall | None) -> tuple[float, int]:
    """Returns what a call, or None, leaves to a nested one; see `inherited`."""
    if served is None:
        return math.inf, 0
    return served.deadline - time.monotonic(), served.depth + 1


# -- the facts of a served call for the function that serves it ----------------------------------


@final
class CurrentCall:
    """The call that this code serves, as seen by the function; its answers change with time.

    It may be kept and handed to other threads. All of it from any thread.

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
