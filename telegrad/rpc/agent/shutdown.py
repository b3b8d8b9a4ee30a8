"""How an agent ends: together with the others, or at once; in every state, any number of times.

    graceful   serve until own calls are done ─▶ on_leaving (process groups are left)
               ─▶ every living worker has called shutdown
               ─▶ what was given up by its caller may end (2.5 s)
               ─▶ before_leaving (RRefs are released) ─▶ goodbye and flush ─▶ torn down
    else       own calls are given up ─▶ goodbye ─▶ torn down

Why nothing is in flight once all have called it: a worker joins the barrier only when its own
calls are answered and it serves none; a call that it serves later comes from one that has not.
For that reason a function that another worker called cannot end its worker together with the
others: its caller waits for it, and it would wait for its caller.
"""

from __future__ import annotations

import enum
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol, final

from telegrad.errors import (
    BlockingCallError,
    RendezvousError,
    RendezvousTimeoutError,
    WorkerLostError,
)
from telegrad.rendezvous import Reminder
from telegrad.transport import on_own_loop
from telegrad.types import WorkerInfo

__all__ = ["CLOSE_SECONDS", "UNGRACEFUL", "Membership", "Shutdown", "Steps"]

# All of a shutdown but the wait for the other workers ends within this.
CLOSE_SECONDS = 10.0
# How soon a thread that drains notices that another one wants to leave at once.
HURRY_SECONDS = 0.1

# What the peers hear in the goodbye, and from the coordinator where that comes first.
GRACEFUL = "shutdown"
NOBODY_LEFT = "shut down without waiting for the others, since it has lost the coordinator"
UNGRACEFUL = (
    "left without a graceful shutdown; a worker that others still need calls rpc.shutdown() at the "
    "end of its program, or runs inside `with rpc.init_rpc():`"
)

_logger = logging.getLogger(__name__)


class Membership(Protocol):
    """For the library: how the others are told; `rendezvous.JoinedJob` is one."""

    def shutdown(self, timeout: float = math.inf) -> bool:
        """Waits until every living worker has called it.

        Returns:
            Whether that is so; False where nobody is left to say it.

        Raises:
            RendezvousTimeoutError: Some have not in time.
        """

    def leave(self, reason: str = "left", timeout: float = 1.0) -> None:
        """Leaves without the others."""

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Closes the line to the coordinator, and the coordinator where it runs here."""

    def check_standing(self, checked: Callable[[], None]) -> None:
        """Has `checked` called once it is known whether this worker is a member."""

    def gave_up(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Hears whom this worker has lost, where that happens: must not block."""


class Steps(Protocol):
    """What the agent does at each step."""

    def drain(self, deadline: float, *, given_up: bool = True) -> bool:
        """Waits until nothing is called or served; tells whether that came true in time.

        Args:
            deadline: Until when, on the clock of `time.monotonic`.
            given_up: Whether calls count whose caller was lost or waits no more.
        """

    def waits_for(self) -> str:
        """Says what `drain` waits for, in words; empty for nothing."""

    def serves_this(self) -> bool:
        """Tells whether the code that asks runs in a call that is served here."""

    def abandon(self) -> None:
        """Gives up what is called; what the others make of it is no concern of the callers."""

    def close(self, timeout: float, reason: str) -> None:
        """Says goodbye, flushes, ends the threads; runs nothing afterwards."""


class _State(enum.Enum):
    NEW = "not started"
    OPEN = "running"
    ENDING = "shutting down"
    CLOSED = "ended"


@final
class Shutdown:
    """The one way from open to closed.

    Args:
        name: The agent's, for errors.
        steps: The agent.

    Attributes:
        membership: How the others are told; None where there are none.
        alone: What they are told where this worker leaves without them.
        on_ending: Called before the own calls are waited for, and now and then while they are: a
            call that is served meanwhile may leave something behind.
        on_leaving: Called when the own calls are done, before the others are waited for.
        before_leaving: Called when all calls are done, with the seconds that are left.
        after_close: Called at the end, the last one first.
    """

    def __init__(self, name: str, steps: Steps) -> None:
        self._name = name
        self._steps = steps
        self._lock = threading.Lock()
        self._state = _State.NEW
        self._thread = 0  # the one that ends the agent
        self._closed = threading.Event()
        self._hurry = threading.Event()  # another thread wants to leave at once
        self._reason = GRACEFUL
        self.membership: Membership | None = None
        self.alone = UNGRACEFUL
        self.on_ending: list[Callable[[], None]] = []
        self.on_leaving: list[Callable[[], None]] = []
        self.before_leaving: list[Callable[[float], None]] = []
        self.after_close: list[Callable[[], None]] = []

    @property
    def state(self) -> str:
        """How far it is, in words."""
        return self._state.value

    def opened(self) -> None:
        """The agent runs now."""
        self._state = _State.OPEN

    def run(self, *, graceful: bool, timeout: float, close_seconds: float = CLOSE_SECONDS) -> None:
        """Ends the agent; whoever calls it while another thread does waits for that one.

        Called once more inside itself, by a signal handler for instance, it waits for nothing.

        Raises:
            RendezvousTimeoutError: The others did not call it in time; it is closed all the same.
            BlockingCallError: On an event loop that telegrad runs; gracefully, in a call that is
                served here. It goes on as before.
        """
        if self._state is _State.CLOSED:
            return
        if on_own_loop():
            raise BlockingCallError(
                "shutdown() would block a loop of telegrad's; call it from a thread"
            )
        if graceful and self._steps.serves_this():
            raise BlockingCallError(
                f"shutdown() on {self._name!r} would wait for the very call that it is called in: "
                "whoever called that cannot shut down before it is answered; return, and call "
                "shutdown() at the end of the program, or leave at once with graceful=False"
            )
        with self._lock:
            first = self._state in (_State.NEW, _State.OPEN)
            was_open = self._state is _State.OPEN
            if first:
                self._state = _State.ENDING
                self._thread = threading.get_ident()
        if not first:
            self._wait_for_other(graceful, timeout, close_seconds)
            return
        started = time.monotonic()
        try:
            if was_open and graceful:
                self._leave_together(timeout)
            elif was_open:
                self._leave_at_once(close_seconds)
        finally:
            spent = 0.0 if graceful else time.monotonic() - started
            self._tear_down(close_seconds - spent, was_open=was_open)

    def _wait_for_other(self, graceful: bool, timeout: float, close_seconds: float) -> None:
        inside = self._thread == threading.get_ident()  # a signal handler or a finaliser
        if not graceful:
            self._hurry.set()  # the one who drains goes on at once
            self._steps.abandon()
            if not inside:
                self._say_goodbye(close_seconds)
            if self.membership is not None:
                self.membership.close(close_seconds)  # and the one who waits in it
        if inside:
            return
        limit = timeout + close_seconds if graceful else close_seconds
        if not self._closed.wait(None if math.isinf(limit) else limit):
            _logger.warning("another thread still shuts down agent %r", self._name)

    def _leave_together(self, timeout: float) -> None:
        try:
            self._wait_for_all(timeout)
        except BaseException:  # an interrupt too: to those who go on it must not look like the end
            self._leave_at_once(CLOSE_SECONDS)
            raise
        ends = time.monotonic() + CLOSE_SECONDS / 2
        if not self._steps.drain(time.monotonic() + CLOSE_SECONDS / 4):
            _logger.warning(
                "agent %r ends with calls that still run, for callers that were lost or have given "
                "them up",
                self._name,
            )
        for callback in self.before_leaving:
            _guarded(callback, max(ends - time.monotonic(), 0.001))

    def _wait_for_all(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if not self._drained(deadline):
            if self._hurry.is_set():
                raise RendezvousError(
                    f"agent {self._name!r} was left at once by another thread, with calls that "
                    "were not answered; wait for them before shutdown(graceful=False)"
                )
            words = self._steps.waits_for()
            raise RendezvousTimeoutError(
                f"agent {self._name!r} still has calls that are not answered {timeout:g} s after "
                f"shutdown() was called ({words or 'just answered'}); it is closed all the same",
                missing=(self._name,),
            )
        for leaving in self.on_leaving:
            _guarded(leaving)
        if self.membership is not None:
            left = max(deadline - time.monotonic(), 0.001)
            self._reason = GRACEFUL if self.membership.shutdown(left) else NOBODY_LEFT

    def _drained(self, deadline: float) -> bool:
        reminder = Reminder()
        while not self._hurry.is_set():
            for ending in self.on_ending:
                _guarded(ending)
            # What was given up may never end; a look at it every now and then is enough, too.
            soon = min(deadline, time.monotonic() + HURRY_SECONDS)
            if self._steps.drain(soon, given_up=False):
                return not self._hurry.is_set()  # the calls may be lost just because of that
            if time.monotonic() >= deadline:
                break
            if reminder.is_due() and (words := self._steps.waits_for()):
                _logger.info("shutdown waits for %s", words)
        return False

    def _leave_at_once(self, limit: float) -> None:
        self._reason = self.alone
        self._steps.abandon()  # first: who hears that this worker leaves gives it up
        self._say_goodbye(limit)

    def _say_goodbye(self, limit: float) -> None:
        if self.membership is not None:
            self.membership.leave(self.alone, min(limit / 2, 1.0))

    def _tear_down(self, limit: float, *, was_open: bool) -> None:
        ends = time.monotonic() + limit
        try:
            try:
                if was_open:
                    self._steps.close(max(limit / 2, 0.1), self._reason)
            finally:  # an interrupt must not leave the coordinator open
                if self.membership is not None:
                    self.membership.close(max(ends - time.monotonic(), 0.1))
        finally:
            for callback in reversed(self.after_close):
                _guarded(callback)
            self._state = _State.CLOSED
            self._closed.set()


def _guarded(callback: Callable[..., None], *args: float) -> None:
    try:
        callback(*args)
    except Exception:  # the rest of the shutdown goes on
        _logger.exception("a step of the shutdown failed: %r", callback)
