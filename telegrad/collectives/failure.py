"""What ends an operation without a value: its deadline, or the failure that ended its group."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Iterable
from typing import final

from telegrad.collectives.messages import OperationId
from telegrad.errors import CallTimeoutError, RemoteError, TelegradError
from telegrad.rpc.seams import current_served_call, fresh_copy, seconds
from telegrad.types import WorkerInfo

# -- deadlines of a wait: tell the others, log a warning, give up --------------------------------

# Seconds after which a waiting rank tells the others; ranks of one program mostly differ by less.
TELL_AFTER = 2.0


class Due(enum.Enum):
    """The action that is due in a wait."""

    NOTHING = enum.auto()
    TELL = enum.auto()
    WARN = enum.auto()
    EXPIRE = enum.auto()


@final
class Clock:
    """The times at which a wait must tell, warn and expire, in seconds from its creation.

    Each waiting rank tells the others well before the warning or the deadline. So the rank that
    warns or gives up knows which ranks are missing. TELL is due again each time the wait has
    become twice as long.

    Args:
        limit: Seconds until the deadline.
        warn_after: Seconds until a warning.
    """

    def __init__(self, limit: float, warn_after: float) -> None:
        self.limit = limit
        self._began = time.monotonic()
        self._tell_at = min(limit / 2, warn_after / 2, TELL_AFTER)
        self._warn_at = warn_after

    @property
    def elapsed(self) -> float:
        """The seconds since the clock was created."""
        return time.monotonic() - self._began

    def next(self) -> float:
        """Returns the seconds until an action is due."""
        due = min(self._tell_at, self._warn_at, self.limit)
        return max(due - time.monotonic() + self._began, 0.0)

    def due(self) -> Due:
        """Returns the action that is due now."""
        elapsed = self.elapsed
        if elapsed >= self.limit:
            return Due.EXPIRE
        if elapsed >= self._tell_at:
            self._tell_at *= 2
            return Due.TELL
        if elapsed >= self._warn_at:
            self._warn_at = math.inf
            return Due.WARN
        return Due.NOTHING

    def error(
        self, where: object, who: str, late: Iterable[WorkerInfo], verb: str
    ) -> CallTimeoutError:
        """Returns the error of a wait that has come to its deadline.

        Args:
            where: The wait, in words.
            who: The ranks that it waits for, in words.
            late: The workers that it waits for.
            verb: The function of `collectives` that waits.
        """
        return CallTimeoutError(
            f"{where} took longer than {self.limit:.3g} s: {who}; give a longer timeout=, or "
            "math.inf",
            worker=", ".join(worker.name for worker in late),
            function=f"collectives.{verb}",
            phase="waiting",
            elapsed=self.elapsed,
        )


def time_limit(timeout: float | None, default: float) -> float:
    """Returns the seconds that a verb may wait, at most the time left of the served call."""
    limit = seconds(timeout, default)
    served = current_served_call()
    if served is None:
        return limit
    return min(limit, max(served.deadline - time.monotonic(), 0.0))


# -- the failure of a group ----------------------------------------------------------------------


@final
class Failure:
    """The failure that ended a group at this member, or the messages between two of its ranks.

    Args:
        cause: The error that ended it. It is never raised itself, only copies of it, since
            raising writes into an exception.
        since: The number of the first operation of all members that is over. Earlier operations
            go on, as every member may have entered them.
        what: What is over, in words.
        earlier: The failure that had ended some of these operations before.

    Attributes:
        cause: The error that ended it, without the frames that raised it.
        since: The number of the first operation of all members that is over.
    """

    def __init__(
        self,
        cause: BaseException,
        since: int,
        what: str = "the group is over",
        earlier: Failure | None = None,
    ) -> None:
        self.since = since
        self._what = what
        self._earlier = earlier
        self.cause = fresh_copy(cause)
        if self.cause is not cause:  # the group outlives the call: it must not keep its frames
            self.cause.__cause__ = self.cause.__context__ = None

    def ends(self, operation_id: OperationId) -> bool:
        """Returns True if this failure ends an operation; it ends all sends and receives."""
        return operation_id.channel is not None or operation_id.sequence >= self.since

    def first_of(self, operation_id: OperationId) -> Failure | None:
        """Returns the first failure that ended an operation, this or an earlier one; else None."""
        before = None if self._earlier is None else self._earlier.first_of(operation_id)
        return before or (self if self.ends(operation_id) else None)

    def fresh(self, where: str) -> BaseException:
        """Returns the cause as a new exception.

        Args:
            where: The operation in which it is raised, for a note on the exception.
        """
        error = self._copy()
        error.add_note(f"raised in {where}")
        return error

    def refusal(self, what: str, remedy: str) -> BaseException:
        """Returns an exception of the cause's class for an operation called after the failure.

        Args:
            what: The refused operation.
            remedy: The advice at the end of the message.
        """
        error = self._copy()
        words = f"{what} is refused, since {self._what}: {error}; {remedy}"
        if isinstance(error, TelegradError):
            error.args = (words,)
        else:
            error.add_note(words)
        return error

    def _copy(self) -> BaseException:
        return fresh_copy(self.cause).with_traceback(None)


def check_alive(failure: Failure | None, where: object) -> None:
    """Raises the cause if there is a failure that has ended an operation.

    Args:
        failure: The failure; None if there is none.
        where: The operation, for a note on the exception.
    """
    if failure is not None:
        raise failure.fresh(str(where))


def cause_for_others(error: BaseException, where: str) -> BaseException:
    """Returns the error to send to the other members after an operation has failed here.

    Args:
        error: The error that the operation raised.
        where: The operation and the rank, in words.
    """
    if isinstance(error, TelegradError):
        return error
    kind = type(error)
    if isinstance(error, Exception):
        error.add_note(f"raised in {where}")
        return error
    name = f"{kind.__module__}:{kind.__qualname__}"
    return RemoteError(f"{where} was interrupted ({kind.__name__})", type_name=name)
