"""The failure that ended a group at one member: its cause, raised again and again."""

from __future__ import annotations

from typing import final

from telegrad.collectives.messages import OperationId
from telegrad.errors import RemoteError, TelegradError
from telegrad.rpc.seams import fresh_copy

__all__ = ["Failure", "cause_for_others"]


@final
class Failure:
    """The failure that ended a group at this member, or the messages between two of its ranks.

    Args:
        cause: The error that ended it. It is never raised itself, only copies of it, since
            raising writes into an exception.
        since: The number of the first operation of all members that is over. Earlier operations
            go on, as every member may have entered them.
        what: What is over, in words.

    Attributes:
        cause: The error that ended it, without the frames that raised it.
        since: The number of the first operation of all members that is over.
    """

    def __init__(self, cause: BaseException, since: int, what: str = "the group is over") -> None:
        self.since = since
        self._what = what
        self.cause = fresh_copy(cause)
        if self.cause is not cause:  # the group outlives the call: it must not keep its frames
            self.cause.__cause__ = self.cause.__context__ = None

    def ends(self, operation_id: OperationId) -> bool:
        """Returns True if this failure ends an operation; it ends all sends and receives."""
        return operation_id.channel is not None or operation_id.sequence >= self.since

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
