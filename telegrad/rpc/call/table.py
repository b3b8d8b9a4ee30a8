"""The calls of one worker that wait for their replies."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from telegrad.critical import critical
from telegrad.errors import WorkerLostError
from telegrad.rpc.base.interceptor import CallRecord
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.waits import Driven, Reads
from telegrad.rpc.pool.deadlines import Deadline
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.call.admission import Window


@dataclass(slots=True, eq=False)
class Again:
    """The means to send a call again when its callee was lost, for one that may run twice.

    Attributes:
        payload: The payload of the request, as it was when the call was made.
        retry: The most times that it is sent again.
        patience: The longest wait for the callee's return, in seconds, if the call has no limit.
        successor: Returns the worker that has taken a lost one's place; None while there is none.
        run: Runs a function in the pool, in the Context of the code that made the call.
        loss: The last loss of the callee.
        sent: The number of times that it was sent.
    """

    payload: object
    retry: int
    patience: float
    successor: Callable[[WorkerInfo], WorkerInfo | None]
    run: Callable[[Callable[[], None]], object]
    loss: WorkerLostError | None
    sent: int = 0


@dataclass(slots=True, eq=False)
class PendingCall(Driven):
    """The caller's end of one call.

    Attributes:
        peer: The callee; for a call that is sent again, in its latest incarnation.
        record: The state that interceptors keep between the request and its reply.
        future: The future that the verb returned.
        reads: Lets a thread that waits for the reply read the messages from the peer; None for a
            user's call to this worker itself, whose reply no message brings.
        started: The time of its start, on the clock of `time.monotonic`.
        limit: The seconds that it may take.
        values: True if the reply carries user values, through the interceptors.
        parent: The served call that made it, and whose end by cancellation is its own.
        again: The means to send it again; None for nearly all calls.
        number: Its id, drawn by the table.
        window: The window of its peer in which it has a place, if it is a root call; see
            `admission`. None before it enters one.
        deadline: Its entry in the heap; None while that is far off.
        given_up: True if it expired or was cancelled; the reply is still expected, and dropped.
        told: The callee's answer about it shortly before its end, and the time; see `whereabouts`.
        withdraw: Takes its number when its future was cancelled, which then calls this.
    """

    peer: WorkerInfo
    record: CallRecord
    future: Future[Any]
    reads: Reads | None
    started: float
    limit: float
    values: bool
    parent: ServedCall | None = None
    again: Again | None = None
    number: int = 0
    window: Window | None = None
    deadline: Deadline | None = None
    given_up: bool = False
    told: tuple[object, float] | None = None
    withdraw: Callable[[int], None] | None = None

    def __call__(self) -> None:
        """Withdraws the call: its future was cancelled."""
        if self.withdraw is not None:
            self.withdraw(self.number)

    @property
    def elapsed(self) -> float:
        """The seconds since it was started."""
        return time.monotonic() - self.started


@final
class CallTable:
    """The table of calls: each gets exactly one reply, or its callee is lost, so no entry stays.

    It has one lock; from any thread.

    Attributes:
        draw: Returns a number that no other call has.
        sent: The number of calls with user values that were ever made.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.draw = itertools.count(1).__next__
        self._calls: dict[int, PendingCall] = {}
        self.sent = 0

    @property
    def pending(self) -> int:
        """The number of calls with user values that wait for their reply.

        It is counted when asked for: a signal handler may raise between any two steps of a change,
        and a shutdown waits until it is 0.
        """
        return sum([each.values and not each.given_up for each in list(self._calls.values())])

    def labels(self) -> list[str]:
        """Returns the calls with user values that wait for their reply, in words, oldest first."""
        with critical.section, self._lock:
            calls = list(self._calls.values())
        return [
            f"{call.record.function} on {call.peer.name!r}"
            for call in calls
            if call.values and not call.given_up
        ]

    def add(self, call: PendingCall) -> None:
        """Enters a call by its number."""
        with critical.section, self._lock:
            self._calls[call.number] = call
            if call.parent is not None:
                call.parent.nested.add(call.future)
            if call.values:
                self.sent += 1

    def due_before(self, moment: float) -> list[PendingCall]:
        """Returns the calls that end without a reply before then, and have no deadline yet.

        It looks at all calls: a look at 10,000 takes a millisecond, and one a second is enough.

        Args:
            moment: On the clock of `time.monotonic`.
        """
        with critical.section, self._lock:
            calls = list(self._calls.values())
        return [
            call
            for call in calls
            if call.deadline is None and not call.given_up and call.started + call.limit < moment
        ]

    def take(self, peer: WorkerInfo, number: int) -> PendingCall | None:
        """Removes and returns the call that a reply from `peer` answers; None if there is none."""
        with critical.section, self._lock:
            call = self._calls.get(number)
            if call is None or call.peer.incarnation != peer.incarnation:
                return None
            del self._calls[number]
            if call.parent is not None:
                _forget(call)
        return call

    def find(self, number: int) -> PendingCall | None:
        """Returns a call that waits for its reply, given up or not."""
        return self._calls.get(number)

    def give_up(self, call: PendingCall) -> bool:
        """Marks a call whose value nobody wants any more; returns False if its reply came first."""
        with critical.section, self._lock:
            if call.given_up or call.number not in self._calls:
                return False
            call.given_up = True
            _forget(call)
        return True

    def lose(self, gone: Callable[[WorkerInfo], bool]) -> list[PendingCall]:
        """Removes and returns the calls to peers that are gone; keeps those with an `again`."""
        with critical.section, self._lock:
            lost = [call for call in self._calls.values() if gone(call.peer)]
            for call in lost:
                if call.again is None or call.given_up:
                    del self._calls[call.number]
                    _forget(call)
        return [call for call in lost if not call.given_up]


def _forget(call: PendingCall) -> None:
    """Takes a call from those that end with the call that made it."""
    if call.parent is not None:
        call.parent.nested.discard(call.future)
