"""Errors that nobody read: told in the log once what holds one is garbage: a future, RRef, stream.

A finaliser may run anywhere, inside the lock of a log handler too: it only puts a function into the
queue of an agent, a report or the end of a stream. That is looked through once a second, and at the
agent's end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import CodeType, FrameType
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, final

from telegrad.rpc.base.ambient import AmbientAgent
from telegrad.rpc.base.tick import Tick
from telegrad.transport import get_logger

LOOK_SECONDS = 1.0  # a user reads the log at leisure, and an empty look costs a microsecond

_logger = get_logger(__name__)


class Origin(NamedTuple):
    """The place where a future was made.

    Neither the frame is kept, which would hold the locals of its function, nor the number of its
    line, which takes longer to find than all else: the instruction tells it when it is asked for.

    Attributes:
        code: The code of the function that made it.
        instruction: The place in that code.
    """

    code: CodeType
    instruction: int

    def __str__(self) -> str:
        lines = self.code.co_lines()
        held = (line for start, end, line in lines if start <= self.instruction < end)
        return f"{self.code.co_filename}:{next(held, None) or self.code.co_firstlineno}"


@final
@dataclass(frozen=True, slots=True)
class Report:
    """A future that is gone, and the error that it held.

    Attributes:
        label: The name of the future.
        origin: The place where it was made.
        error: The error that nobody read, or a reply that nobody decoded, which raises it.
    """

    label: str
    origin: Origin
    error: BaseException | Callable[[], object]

    def __call__(self) -> None:
        """Writes the log, if there is an error."""
        if (error := self.read()) is not None:
            _logger.warning(
                "%s failed, and nobody read its error; it was made at %s: wait() for it, await it, "
                "or look at its exception(); ask an RRef for its value, read a stream to its end",
                self.label,
                self.origin,
                exc_info=error,
            )

    def read(self) -> BaseException | None:
        """Returns the error; decodes it where nobody did."""
        if isinstance(self.error, BaseException):
            return self.error
        try:
            self.error()
        except BaseException as error:  # whatever the callee raised
            return error
        return None


Reports: TypeAlias = SimpleQueue[Callable[[], None]]


class WatchedFuture(Protocol):
    """A future that may fail; `Future` is the one."""

    def _watch(self, origin: Origin, reports: Reports | None, /) -> None:
        """Has its error reported if nobody reads it."""


W = TypeVar("W", bound=WatchedFuture)


@final
class UnreadErrors:
    """The errors that nobody read, as finalisers in one agent's process have told them.

    Args:
        after: Calls a function on the loop, some seconds later.

    Attributes:
        reports: The queue of what finalisers have reported.
    """

    def __init__(
        self,
        after: Callable[[float, Callable[[], None]], object],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self.reports: Reports = SimpleQueue()
        self._submit = submit
        self._tick = Tick(after, LOOK_SECONDS, self._look, lambda: True)

    def expect(self) -> Reports:
        """Returns where a finaliser reports to; from now on the queue is looked through."""
        self._tick.start()
        return self.reports

    def tell(self) -> None:
        """Calls what is in the queue; that decodes errors, so not on the loop."""
        with contextlib.suppress(Empty):
            while True:
                self.reports.get_nowait()()

    def _look(self) -> None:
        if not self.reports.empty():
            self._submit(self.tell)


def origin_of_caller(frame: FrameType) -> Origin | None:
    """Returns where a frame is; None where that runs telegrad's own code."""
    if frame.f_globals.get("__name__", "").startswith("telegrad."):
        return None
    return Origin(frame.f_code, frame.f_lasti)


def watched(agent: AmbientAgent, future: W) -> W:
    """For the library: returns a future given to a user, who may forget to read its error."""
    return watch_from(agent, future, origin_here())


def watch_from(agent: AmbientAgent, future: W, origin: Origin | None) -> W:
    """Does what `watched` does, for a future whose origin is known."""
    if origin is not None:
        future._watch(origin, reports_of(agent))
    return future


def origin_here() -> Origin | None:
    """Returns where the nearest code that is not telegrad's has called this."""
    frame: FrameType | None = sys._getframe(2)  # who called the verb
    while frame is not None and frame.f_globals.get("__name__", "").startswith("telegrad."):
        frame = frame.f_back
    return None if frame is None else Origin(frame.f_code, frame.f_lasti)


def reports_of(agent: AmbientAgent | None) -> Reports | None:
    """Returns where an agent, if there is one, hears of errors that nobody reads."""
    unread = None if agent is None else agent.attachments.find(UnreadErrors)
    return None if unread is None else unread.expect()  # it has none where it joined no job
