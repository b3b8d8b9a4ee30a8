"""The life of an agent: it opens, and ends together with the others or at once, in every state.

    graceful   serve until own calls are done ─▶ on_leaving
               ─▶ every living worker has called shutdown ─▶ on_all_ending (groups are left)
               ─▶ calls whose callers gave them up may end (2.5 s)
               ─▶ before_leaving (RRefs are released) ─▶ goodbye and flush ─▶ torn down
    else       own calls are given up ─▶ goodbye ─▶ torn down

Nothing is in flight once all have called it: a worker joins the barrier only when its own calls are
answered and it serves none, and a call that it serves later comes from a worker that has not
joined. For that reason a function that another worker called cannot end its worker together with
the others: its caller waits for it, and it would wait for its caller.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, final

from telegrad.critical import critical
from telegrad.errors import (
    AgentForkedError,
    BlockingCallError,
    RendezvousError,
    RendezvousTimeoutError,
)
from telegrad.rendezvous import JoinedJob, Reminder
from telegrad.transport import get_logger, refuse_to_block

# A shutdown ends within this time, except for the wait for the other workers.
CLOSE_SECONDS = 10.0
# One that leaves at once, or was interrupted, has less: whoever pressed Ctrl-C waits for the end of
# the process. It must not take 5 s, even if the peers are stopped and read nothing.
AT_ONCE_SECONDS = 2.5
# The time after which a draining thread notices that another one wants to leave at once.
HURRY_SECONDS = 0.1

# The reason in the goodbye to the peers, and from the coordinator where that comes first.
GRACEFUL = "shutdown"
NOBODY_LEFT = "shut down without waiting for the others, since it has lost the coordinator"
UNGRACEFUL = (
    "left without a graceful shutdown; a worker that others still need calls rpc.shutdown() at the "
    "end of its program, or runs inside `with rpc.init_rpc():`"
)

_logger = get_logger(__name__)


class Steps(Protocol):
    """The work of the agent at each step of its end."""

    def drain(self, deadline: float, *, given_up: bool = True) -> bool:
        """Waits until nothing is called or served; returns True if that happened in time.

        Args:
            deadline: The end of the wait, on the clock of `time.monotonic`.
            given_up: True if calls count whose caller was lost or waits no more.
        """

    def waits_for(self) -> str:
        """Returns the calls that `drain` waits for, in words; empty for none."""

    def own_calls(self) -> int:
        """Returns the number of own calls that are not answered."""

    def serves_this(self) -> bool:
        """Returns True if the calling code runs in a call that is served here."""

    def abandon(self) -> None:
        """Gives up the own calls; their effect on other workers is no concern of the callers."""

    def close(self, timeout: float, reason: str) -> None:
        """Says goodbye, flushes, ends the threads; runs nothing afterwards."""


class _State(enum.Enum):
    NEW = "not started"
    OPEN = "running"
    ENDING = "shutting down"
    CLOSED = "ended"


class _Moment(enum.Enum):
    """The moments at which a callback is called, in this order."""

    ENDING = "before own calls are waited for"
    LEAVING = "before the others are waited for"
    ALL_ENDING = "when all others have come"
    DRAINED = "when all calls are done"
    CLOSED = "at the end"


@final
class Life:
    """The state of an agent on its one way from made to closed, and the callbacks of its end.

    Args:
        name: The agent's name, for errors.

    Attributes:
        name: The agent's name.
        pid: The process that the agent runs in.
        forked: True in a process that was forked from that one.
        ended: True once the agent was shut down.
        membership: Tells the other workers of the end; None where there are none.
        alone: The reason that they are told where this worker leaves without them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()
        self.forked = False
        self.ended = False
        self._made = time.monotonic()
        self._lock = threading.Lock()
        self._state = _State.NEW
        self._thread = 0  # the thread that ends the agent
        self._closed = threading.Event()
        self._hurry = threading.Event()  # another thread wants to leave at once
        self._reason = GRACEFUL
        self._ends = math.inf  # the moment at which it must be over
        self.membership: JoinedJob | None = None
        self.alone = UNGRACEFUL
        self._callbacks: dict[_Moment, list[Callable[..., None]]] = {each: [] for each in _Moment}

    @property
    def state(self) -> str:
        """The present state, in words."""
        return self._state.value

    @property
    def age(self) -> float:
        """The seconds since the agent was made."""
        return time.monotonic() - self._made

    def check_process(self) -> None:
        """Checks that the agent was made in this process: only there it has its threads.

        Raises:
            AgentForkedError: This process was forked from the one that the agent runs in.
        """
        if self.pid != os.getpid():
            raise AgentForkedError(
                f"the agent {self.name!r} belongs to process {self.pid}, from which this process "
                f"({os.getpid()}) was forked; start processes with multiprocessing's 'spawn' "
                "method and call rpc.init_rpc() in each"
            )

    def on_ending(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` before a graceful shutdown waits for own calls.

        It is called again now and then during that wait: a call that is served meanwhile may leave
        something behind.
        """
        self._callbacks[_Moment.ENDING].append(callback)

    def on_leaving(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` in a graceful shutdown before it waits for the other workers."""
        self._callbacks[_Moment.LEAVING].append(callback)

    def on_all_ending(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` in a graceful shutdown once every living worker has called it.

        Nobody's program uses this worker any more. Calls that their callers gave up may still run.
        """
        self._callbacks[_Moment.ALL_ENDING].append(callback)

    def before_leaving(self, callback: Callable[[float], None]) -> None:
        """Calls `callback(seconds)` in a graceful shutdown, when all calls are done.

        It may block for the seconds given, while messages still travel.
        """
        self._callbacks[_Moment.DRAINED].append(callback)

    def after_close(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` at the end of every shutdown, the last registered first."""
        self._callbacks[_Moment.CLOSED].append(callback)

    def opened(self) -> None:
        """Records that the agent runs now."""
        self._state = _State.OPEN

    def end(
        self,
        steps: Steps,
        *,
        graceful: bool,
        timeout: float,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        """Ends the agent; waits, if another thread ends it already, for that thread.

        Called once more inside itself, by a signal handler for instance, it waits for nothing.

        Args:
            steps: The agent.
            graceful: True to end together with the others.
            timeout: Seconds for the own calls, and for the other workers.
            close_seconds: Seconds for all else; at most AT_ONCE_SECONDS if it leaves at once.

        Raises:
            RendezvousTimeoutError: The others did not call it in time; it is closed all the same.
            BlockingCallError: On an event loop that telegrad runs; gracefully, in a call that is
                served here. It goes on as before.
        """
        if self._state is _State.CLOSED:
            return
        refuse_to_block("shutdown()", "call it from a thread")
        if graceful and steps.serves_this():
            raise BlockingCallError(
                f"shutdown() on {self.name!r} would wait for the very call that it is called in: "
                "whoever called that cannot shut down before it is answered; return, and call "
                "shutdown() at the end of the program, or leave at once with graceful=False"
            )
        with critical.section, self._lock:
            first = self._state in (_State.NEW, _State.OPEN)
            was_open = self._state is _State.OPEN
            if first:
                self._state = _State.ENDING
                self._thread = threading.get_ident()
        if not first:
            self._wait_for_other(steps, graceful, timeout, close_seconds)
            return
        try:
            if was_open and graceful:
                self._leave_together(steps, timeout, close_seconds)
            elif was_open:
                self._leave_at_once(steps, close_seconds)
        finally:
            left = min(close_seconds, self._ends - time.monotonic())
            self._tear_down(steps, left, was_open=was_open)

    def _wait_for_other(
        self, steps: Steps, graceful: bool, timeout: float, close_seconds: float
    ) -> None:
        inside = self._thread == threading.get_ident()  # a signal handler or a finaliser
        if not graceful:
            self._hurry.set()  # the thread that drains goes on at once
            steps.abandon()
            if not inside:
                self._say_goodbye(close_seconds)
            if self.membership is not None:
                self.membership.close(close_seconds)  # and the thread that waits in it
        if inside:
            return
        limit = timeout + close_seconds if graceful else close_seconds
        if not self._closed.wait(None if math.isinf(limit) else limit):
            _logger.warning("another thread still shuts down agent %r", self.name)

    def _leave_together(self, steps: Steps, timeout: float, close_seconds: float) -> None:
        try:
            self._wait_for_all(steps, timeout)
        except BaseException:  # an interrupt too: to waiting threads it must not look like the end
            self._leave_at_once(steps, close_seconds)
            raise
        try:
            self._drain_and_release(steps)
        except BaseException:  # an interrupt
            self._limit_end(close_seconds)
            raise

    def _drain_and_release(self, steps: Steps) -> None:
        ends = time.monotonic() + CLOSE_SECONDS / 2
        if not steps.drain(time.monotonic() + CLOSE_SECONDS / 4):
            _logger.warning(
                "agent %r ends while calls still run; their callers were lost or no longer wait "
                "for them",
                self.name,
            )
        for callback in self._callbacks[_Moment.DRAINED]:
            _guarded(callback, max(ends - time.monotonic(), 0.001))

    def _wait_for_all(self, steps: Steps, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if not self._drained(steps, deadline):
            if self._hurry.is_set():
                raise RendezvousError(
                    f"agent {self.name!r} was left at once by another thread, with calls that "
                    "were not answered; wait for them before shutdown(graceful=False)"
                )
            words = steps.waits_for()
            raise RendezvousTimeoutError(
                f"agent {self.name!r} still has calls that are not answered {timeout:g} s after "
                f"shutdown() was called ({words or 'just answered'}); it is closed all the same",
                missing=(self.name,),
            )
        for leaving in self._callbacks[_Moment.LEAVING]:
            _guarded(leaving)
        if self.membership is not None:
            left = max(deadline - time.monotonic(), 0.001)
            self._reason = GRACEFUL if self.membership.shutdown(left) else NOBODY_LEFT
        for ending in self._callbacks[_Moment.ALL_ENDING]:
            _guarded(ending)

    def _drained(self, steps: Steps, deadline: float) -> bool:
        reminder = Reminder()
        while not self._hurry.is_set():
            for ending in self._callbacks[_Moment.ENDING]:
                _guarded(ending)
            # Calls that were given up may never end; a look at them every now and then is enough,
            # too.
            soon = min(deadline, time.monotonic() + HURRY_SECONDS)
            if steps.drain(soon, given_up=False):
                return not self._hurry.is_set()  # the calls may be lost just because of that
            if time.monotonic() >= deadline:
                break
            if reminder.is_due() and (words := steps.waits_for()):
                # A worker that only serves waits for as long as the job runs: nothing is wrong.
                level = logging.WARNING if steps.own_calls() else logging.INFO
                _logger.log(level, "shutdown waits for %s", words)
        return False

    def _limit_end(self, close_seconds: float) -> float:
        """Sets when the end must be over that others do not take part in; returns the seconds."""
        limit = min(close_seconds, AT_ONCE_SECONDS)
        self._ends = time.monotonic() + limit
        return limit

    def _leave_at_once(self, steps: Steps, close_seconds: float) -> None:
        limit = self._limit_end(close_seconds)
        self._reason = self.alone
        steps.abandon()  # first: a peer that hears that this worker leaves gives it up
        self._say_goodbye(limit)

    def _say_goodbye(self, limit: float) -> None:
        if self.membership is not None:
            self.membership.leave(self.alone, min(limit / 2, 1.0))

    def _tear_down(self, steps: Steps, limit: float, *, was_open: bool) -> None:
        ends = time.monotonic() + limit
        try:
            try:
                if was_open:
                    steps.close(max(limit / 2, 0.1), self._reason)
            finally:  # an interrupt must not leave the coordinator open
                if self.membership is not None:
                    self.membership.close(max(ends - time.monotonic(), 0.1))
        finally:
            for callback in reversed(self._callbacks[_Moment.CLOSED]):
                _guarded(callback)
            self.ended = True
            self._state = _State.CLOSED
            self._closed.set()


def _guarded(callback: Callable[..., None], *args: float) -> None:
    try:
        callback(*args)
    except Exception:  # the rest of the shutdown goes on
        _logger.exception("a step of the shutdown failed: %r", callback)
