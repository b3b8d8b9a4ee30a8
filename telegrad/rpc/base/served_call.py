"""The call that this code serves: its deadline and depth, which nested calls inherit.

Code that outlives its call (a task, a thread that copied its context) still finds the ServedCall,
but no longer `active`, and so inherits nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Final, Protocol, cast, final

from telegrad.critical import critical
from telegrad.errors import CallCancelledError, CallTimeoutError, TelegradError
from telegrad.rpc.base.call_record import CallPhase, CallRecord, Outcome
from telegrad.types import WorkerInfo


class Cancellable(Protocol):
    """Work that ends when the call that made it is cancelled: a Future, or a blocking wait."""

    def cancel(self) -> bool:
        """Ends it, unless it has ended; idempotent, from any thread, never blocks."""


# Of a call that has made no call and has not waited, as most do: the garbage collector counts each
# set and list that is alive.
_NO_WORK: Final = cast("set[Cancellable]", frozenset())
_NO_HOOKS: Final = cast("list[Callable[[], None]]", ())
_making_lock = threading.Lock()  # guards the making of a call's own sets and list


@final
@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class ServedCall:
    """For the library: the callee's end of one call.

    Attributes:
        worker: The name of the worker that serves it.
        caller: The worker that called.
        number: The call's id, drawn by the caller.
        record: The state that interceptors keep between the request and its reply.
        deadline: The deadline on the clock of `time.monotonic`; `math.inf` without one.
        depth: The length of the call tree above it.
        kind: The kind of its request.
        came: The time of its arrival, on the clock of `time.monotonic`.
        began: The time at which its function was called; None before.
        active: True while it runs; false from the moment its reply is made.
        cancelled: True if the caller gave it up, or is lost.
        expired: True if the caller did so because the deadline passed.
        nested: The calls that it has made and that are not answered yet. Changed under the lock of
            the call table; of one agent, or of several agents: each operation is atomic. Only
            `nests` adds to it: before the first one it is one empty set of all calls.
        waits: The blocking waits of its threads; each operation is atomic. Only `begins` adds.
        release: Gives back the bytes that it was admitted with; None where it holds none.
        items: For a stream: the number of items that it has sent.
        runner: The object by which it ends: a thread or task, or the future of its value; see
            `comes_from`. None before it starts.
    """

    worker: str
    caller: WorkerInfo
    number: int
    record: CallRecord
    deadline: float
    depth: int
    kind: str = ""
    came: float = field(default_factory=time.monotonic)
    began: float | None = field(init=False, default=None)
    active: bool = field(init=False, default=True)
    cancelled: bool = field(init=False, default=False)
    expired: bool = field(init=False, default=False)
    nested: set[Cancellable] = field(init=False, default=_NO_WORK)
    waits: set[Cancellable] = field(init=False, default=_NO_WORK)
    release: Callable[[], None] | None = field(init=False, default=None)
    items: int = field(init=False, default=0)
    runner: object = field(init=False, default=None)
    _hooks: list[Callable[[], None]] = field(init=False, default=_NO_HOOKS)

    @property
    def phase(self) -> CallPhase:
        """The phase in which its callee sees it."""
        return CallPhase.QUEUED if self.began is None else CallPhase.RUNNING

    def failed(self) -> Outcome:
        """Returns its outcome if it has no value."""
        if self.expired or self.deadline <= time.monotonic():
            return Outcome.TIMEOUT
        return Outcome.CANCELLED if self.cancelled else Outcome.ERROR

    def cancel(self, *, expired: bool = False) -> None:
        """Marks it as given up; cancels its coroutine, its nested calls, and its waits.

        A thread that runs it finishes for nobody. From any thread; idempotent.
        """
        if not self.active:
            return
        self.expired = self.expired or expired
        self.cancelled = True
        self._run_hooks()  # first: code that awaits a nested call is to see its own cancellation
        for nested in list(self.nested):
            nested.cancel()
        for wait in list(self.waits):  # last: waiters for a nested call get its result
            wait.cancel()

    def nests(self, call: Cancellable) -> None:
        """Adds a call that it has made."""
        if self._hooks is _NO_HOOKS:
            self._make_own()
        self.nested.add(call)

    def begins(self, wait: Cancellable) -> None:
        """Adds a wait of one of its threads."""
        if self._hooks is _NO_HOOKS:
            self._make_own()
        self.waits.add(wait)

    def _make_own(self) -> None:
        """Makes its sets and its list, unless another thread has made them."""
        with critical.section, _making_lock:
            if self._hooks is _NO_HOOKS:
                self.nested, self.waits = set(), set()
                self._hooks = []  # last: a thread that finds this finds all three

    def on_cancel(self, hook: Callable[[], None]) -> None:
        """Calls `hook` once when it is cancelled, or now if it was; the hook must not block."""
        if self._hooks is _NO_HOOKS:
            self._make_own()
        self._hooks.append(hook)
        if self.cancelled:
            self._run_hooks()

    def end(self) -> None:
        """Records that its reply is being made: code that outlives it inherits nothing."""
        self.active = False
        self.runner = None
        if self._hooks and not self.cancelled:  # else the thread that cancels it runs each of them
            self._hooks.clear()

    def given_up(self) -> TelegradError:
        """Returns the error with which a cancelled call ends."""
        function, caller = self.record.function, self.caller.name
        if self.expired or self.deadline <= time.monotonic():
            return CallTimeoutError(
                f"{function} has no time left on {self.worker!r}: it was given up by {caller!r}, "
                "who called it",
                worker=self.worker,
                function=function,
                phase="serving",
            )
        return CallCancelledError(
            f"{function} was cancelled by {caller!r}, or {caller!r} is lost, before its value was "
            f"there on {self.worker!r}"
        )

    def check(self) -> None:
        """Returns if its value is still wanted.

        Raises:
            CallTimeoutError: The call's time is over.
            CallCancelledError: The caller has cancelled the call, or is lost.
        """
        if self.cancelled or self.deadline <= time.monotonic():
            raise self.given_up()

    def runs_by(self, runner: object) -> None:
        """Records the object by which it ends; the last one counts."""
        if self.active:
            self.runner = runner

    def let_others_in(self) -> None:
        """Gives back its admission: it ended, or waits, perhaps for the calls that wait for it."""
        release, self.release = self.release, None
        if release is not None:
            release()

    def _run_hooks(self) -> None:
        hooks = self._hooks
        while hooks:
            try:
                hook = hooks.pop()  # atomic: the thread that has it calls it, once
            except IndexError:
                return
            hook()


_served: ContextVar[ServedCall | None] = ContextVar("telegrad_served_call", default=None)


def current_served_call() -> ServedCall | None:
    """For the library: returns the call that this code serves, None where it serves none."""
    served = _served.get()
    return served if served is not None and served.active else None


# Returns that call even when it has its reply, for code that looks at `active` itself.
innermost_served_call: Callable[[], ServedCall | None] = _served.get


def still_runs(parent: ServedCall | None) -> bool:
    """Returns True if a thing was made by a call, `parent`, and that call still runs."""
    return parent is not None and parent.active


def last_served_call() -> ServedCall | None:
    """Returns the call that this code serves, or has served if that one was cancelled."""
    served = _served.get()
    return served if served is not None and (served.active or served.cancelled) else None


# Marks the current Context, made for this call, as serving it; each call does so first.
enter_served_call: Callable[[ServedCall], Token[ServedCall | None]] = _served.set


def time_left() -> float:
    """Returns the seconds that the served call leaves to a nested one; `math.inf` without one."""
    served = current_served_call()
    return math.inf if served is None else served.deadline - time.monotonic()
