"""The record that each end of a call keeps, and its facts, which observers see.

Metrics, spans and recorders are observers: they see every call begin and end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, final

from telegrad.rpc.base.contained import is_interrupt
from telegrad.transport import get_logger
from telegrad.types import WorkerInfo

_logger = get_logger(__name__)


@dataclass(slots=True)
class CallRecord:
    """For the library: the state that one end of a call keeps between its request and its reply.

    The caller's end and the callee's end each have their own.

    Attributes:
        function: The name of the function, for messages and logs.
        state: Values that interceptors want to find again at the reply, under their own names.
        served: The function that runs for it at the callee, without the object that it is bound to;
            None where that is no function of Python's.
        starts_after: The `Future` for which the callee waits, without a thread, before it runs the
            function; set by `incoming`. Where one fails, the function does not run and the call
            fails with it.
        answered: At `undelivered` of a reply, True if the reply has a value, and came after its
            deadline.
        most: The maximal bytes of the reply's document; 0 for any number.
        explain: Returns the error that says more than the one with which the call has failed; runs
            in the thread that reads it. None if none does.
        facts: The facts for observers; None where there are none.
    """

    function: str
    state: dict[str, object] = field(default_factory=dict)
    served: Callable[..., Any] | None = None
    starts_after: Any = None
    answered: bool = False
    most: int = 0
    explain: Callable[[BaseException], BaseException] | None = None
    facts: CallFacts | None = None


class CallPhase(Enum):
    """The place of a call in its life, as one of its ends knows it."""

    WAITING = "the caller waits for a place, for a permit, or for the return of the callee"
    POSTED = "the caller has posted it, and waits for the reply"
    QUEUED = "the callee has it, and has not called its function yet"
    RUNNING = "the callee runs its function, or sends the reply"
    OVER = "this end is done with it"


class Outcome(Enum):
    """The end of a call, as one of its ends knows it."""

    VALUE = "it has a value, which may still turn out to be too big, or not to be decodable"
    ERROR = "it failed, here or there; a refusal is an error, too"
    TIMEOUT = "its time was over first"
    CANCELLED = "its caller gave it up, or is lost"
    LOST = "its callee is lost"


class CallEnd(Protocol):
    """One end of a call: the caller's `PendingCall` or the callee's `ServedCall`."""

    record: CallRecord
    number: int

    @property
    def phase(self) -> CallPhase:
        """The phase in which it is."""


@final
@dataclass(slots=True, eq=False, repr=False)
class CallFacts:
    """For the library: the facts of one end of a call that carries user values.

    Attributes:
        kind: The kind of the request, such as `rpc.call`.
        peer: The worker at the other end; for a call that is sent again, the first callee.
        served: True at the callee.
        began: The time at which it was made or arrived, on the clock of `time.monotonic`.
        number: The call's id, the same at both ends; calls of two callers may have the same.
        request_bytes: The bytes of the request; 0 while a call waits for the return of its callee.
        reply_bytes: The bytes of the reply; 0 before, and without one.
        ended: The time of its end; None before.
        outcome: Its outcome; None before.
        expected: The outcome of a call whose error nobody has made yet; None elsewhere.
    """

    kind: str
    peer: WorkerInfo
    served: bool
    began: float
    _end: CallEnd | None  # None after the end: it refers to these facts, and would make a circle
    _observers: Sequence[CallObserver]
    request_bytes: int = 0
    reply_bytes: int = 0
    ended: float | None = None
    outcome: Outcome | None = None
    expected: Outcome | None = None
    _function: str = ""
    number: int = 0
    _told: list[CallObserver] = field(default_factory=list)

    @property
    def function(self) -> str:
        """The name of the function; at the callee the kind of the request until it is read.

        In a refused call these are the words of the caller, without line ends and of bounded
        length.
        """
        return self._function if self._end is None else self._end.record.function

    @property
    def phase(self) -> CallPhase:
        """The phase of the call at this moment."""
        return CallPhase.OVER if self._end is None else self._end.phase

    def begin(self) -> None:
        """Tells the observers that the call begins."""
        if self._end is not None:
            self.number = self._end.number
        for observer in self._observers:
            self._told.append(observer)  # first: an interrupted `on_begin` is followed by `on_end`
            try:
                observer.on_begin(self)
            except BaseException as error:
                self._failed("begin", error)

    def end(self, outcome: Outcome) -> None:
        """Tells those observers that the call has ended; called once."""
        self.outcome, self.ended = outcome, time.monotonic()
        if self._end is not None:
            self._function, self._end = self._end.record.function, None
        for observer in self._told:
            try:
                observer.on_end(self)
            except BaseException as error:
                self._failed("end", error)

    def _failed(self, which: str, error: BaseException) -> None:
        """Logs what an observer has raised: the call goes on."""
        if is_interrupt(error):
            raise error
        _logger.error("an observer failed at the %s of %s", which, self.function, exc_info=error)


class CallObserver(Protocol):
    """For the library: sees both ends of each call with user values that a worker has.

    A composition root registers it with an agent (`AgentCore.observe`). It sees each call begin
    once and end once; a call that began before it was registered it does not see. After a Ctrl-C
    inside `on_begin` an end may come without a begin. Its methods run in any thread, a loop's
    included, inside other people's waits: they must not block, call, or raise, and each costs all
    calls its time.
    """

    def on_begin(self, facts: CallFacts) -> None:
        """Takes the facts of a call that begins; they change until its end."""

    def on_end(self, facts: CallFacts) -> None:
        """Takes the same facts at its end, before a thread that waits for it is woken."""
