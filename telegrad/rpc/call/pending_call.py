"""The caller's end of one call, and the words for its place at its callee."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from telegrad.errors import CallCancelledError, CallTimeoutError, WorkerLostError
from telegrad.rpc.base.call_record import CallPhase, CallRecord, Outcome
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call.admission import Window
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.reads import Driven, Reads
from telegrad.rpc.pool.deadlines import Deadline
from telegrad.types import WorkerInfo
from telegrad.wire import escaped


class State(Enum):
    """The state of a call."""

    NEW = "a thread is about to send it"
    WAITING = "it waits for a place, or for a permit"
    POSTED = "its message was posted"
    AWAY = "it waits for the return of its callee"
    GIVEN_UP = "nobody waits for its reply"
    OVER = "it has ended"


_PHASES: Final = {
    State.POSTED: CallPhase.POSTED, State.GIVEN_UP: CallPhase.OVER, State.OVER: CallPhase.OVER
}  # fmt: skip
_OUTCOMES: Final = (
    (CallTimeoutError, Outcome.TIMEOUT),
    (CallCancelledError, Outcome.CANCELLED),
    (WorkerLostError, Outcome.LOST),
)


def outcome_of(error: BaseException) -> Outcome:
    """Returns the outcome of a call that this end fails with an error."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), Outcome.ERROR)


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
        reads: Lets a thread that waits for the reply read the messages from the peer; None for a
            user's call to this worker itself, whose reply no message brings.
        started: The time of its start, on the clock of `time.monotonic`.
        limit: The seconds that it may take.
        values: True if the reply carries user values, through the interceptors.
        parent: The served call that made it, and whose end by cancellation is its own.
        again: The means to send it again; None for nearly all calls.
        number: Its id; 0 until it is drawn.
        future: The future that the verb returned. The two refer to each other until it is
            completed.
        state: Its state, which `CallLife` alone changes.
        window: The window of its peer in which it has a place, if it is a root call; see
            `admission`.
        deadline: Its entry in the heap; None while that is far off.
        told: The callee's answer about it shortly before its end, and the time; see `tell`.
        withdraw: Takes its number when its future was cancelled, which then calls this.
    """

    peer: WorkerInfo
    record: CallRecord
    reads: Reads | None
    started: float
    limit: float
    values: bool
    parent: ServedCall | None = None
    again: Again | None = None
    number: int = 0
    future: Future[Any] = field(init=False)
    state: State = State.NEW
    window: Window | None = None
    deadline: Deadline | None = None
    told: tuple[object, float] | None = None
    withdraw: Callable[[int], None] | None = None

    def __call__(self) -> None:
        """Withdraws the call: its future was cancelled."""
        if self.withdraw is not None:
            self.withdraw(self.number)

    def ended(self) -> None:
        """Tells the observers: its future was completed."""
        facts, error = self.record.facts, self.future._error
        assert facts is not None
        if self.future._fails:  # first: a thread that decodes the failure may have set the error
            facts.end(facts.expected or Outcome.ERROR)
        else:
            facts.end(Outcome.VALUE if error is None else outcome_of(error))

    @property
    def phase(self) -> CallPhase:
        """The phase in which its caller sees it."""
        return _PHASES.get(self.state, CallPhase.WAITING)

    @property
    def elapsed(self) -> float:
        """The seconds since it was started."""
        return time.monotonic() - self.started

    @property
    def due(self) -> float:
        """The moment of its deadline, on the clock of `time.monotonic`."""
        return self.started + self.limit


# -- the place of a call that takes long ---------------------------------------------------------
#
# Its callee is asked shortly before its time is over. The answer stands in the message of the
# CallTimeoutError:
#
#     not here     the request, or the reply, is still on the way
#     queued       no thread of the pool has taken it yet
#     running      for so many seconds, and the calls of its own that are not answered

WHERE: Final = "rpc.where"  # the call whose time is nearly over; answered with the value of `tell`
NOT_HERE, QUEUED, RUNNING = 0, 1, 2
MOST_NAMED = 3  # calls that it waits for
MOST_TEXT = 160  # characters of each


def tell(came: float | None, began: float | None, calls: Sequence[str]) -> list[object]:
    """Returns a callee's answer about a call.

    Args:
        came: The time of its arrival, on the clock of `time.monotonic`; None for one that is not
            served.
        began: The time at which its function was called; None before.
        calls: The calls that it has made and that are not answered, in words.
    """
    if came is None:
        return [NOT_HERE, 0.0, []]
    now = time.monotonic()
    if began is None:
        return [QUEUED, now - came, []]
    return [RUNNING, now - began, [each[:MOST_TEXT] for each in calls[: MOST_NAMED + 1]]]


def words(said: object, since: float = 0.0) -> str:
    """Returns a callee's answer in words; empty where it said nothing that is understood.

    Args:
        said: The value of `tell` there.
        since: The seconds since then.

    >>> words([NOT_HERE, 0.0, []])
    'it is not there: its arguments, or its reply, are on the way'
    >>> words([QUEUED, 1.25, []])
    'it has waited there for a thread of the pool for 1.2 s'
    >>> words([RUNNING, 2.75, []], 0.25)
    'it has run there for 3.0 s'
    >>> words([RUNNING, 3.0, ["the call of load on 'worker2'"]])
    "it has run there for 3.0 s, and waits itself for the call of load on 'worker2'"
    >>> words("nonsense")
    ''
    """
    if not isinstance(said, list) or len(said) != 3:
        return ""
    where, seconds, calls = said
    if not isinstance(seconds, float) or not isinstance(calls, list):
        return ""
    if where == NOT_HERE:
        return "it is not there: its arguments, or its reply, are on the way"
    lasts = f"{seconds + since:.1f} s"
    if where == QUEUED:
        return f"it has waited there for a thread of the pool for {lasts}"
    if where != RUNNING:
        return ""
    names = [escaped(str(each)[:MOST_TEXT]) for each in calls[:MOST_NAMED]]
    names += ["others"] * (len(calls) > MOST_NAMED)
    waits = f", and waits itself for {' and '.join(names)}" if names else ""
    return f"it has run there for {lasts}{waits}"
