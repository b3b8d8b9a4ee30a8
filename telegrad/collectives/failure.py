"""Why a group is over, as an exception of its own for everyone who hears of it."""

from __future__ import annotations

from typing import final

from telegrad.collectives.messages import OperationId
from telegrad.errors import RemoteError, TelegradError
from telegrad.rpc import fresh_copy

__all__ = ["Failure", "cause_for_others"]


@final
class Failure:
    """What ended a group here.

    Args:
        cause: Never raised itself, since raising writes into an exception.
        since: The first operation of all members that is over. Earlier ones go on: every member
            may have entered them.

    Attributes:
        since: As given.
    """

    def __init__(self, cause: BaseException, since: int) -> None:
        self.since = since
        self._cause = fresh_copy(cause)
        if self._cause is not cause:  # a group lives on, and must not keep the frames of `cause`
            self._cause.__cause__ = self._cause.__context__ = None

    def ends(self, operation_id: OperationId) -> bool:
        """Tells whether an operation is over by this; all sends and receives are."""
        return operation_id.channel is not None or operation_id.sequence >= self.since

    def fresh(self, where: str) -> BaseException:
        """Returns the cause as a new exception.

        Args:
            where: In which operation it is raised; a note says so.
        """
        error = self._copy()
        error.add_note(f"raised in {where}")
        return error

    def refusal(self, what: str, remedy: str) -> BaseException:
        """Returns an exception of the cause's class for what was called after it.

        Args:
            what: The operation that is refused.
            remedy: What to do instead.
        """
        error = self._copy()
        words = f"{what} is refused, since the group is over: {error}; {remedy}"
        if isinstance(error, TelegradError):
            error.args = (words,)
        else:
            error.add_note(words)
        return error

    def _copy(self) -> BaseException:
        return fresh_copy(self._cause).with_traceback(None)


def cause_for_others(error: BaseException, where: str) -> BaseException:
    """Returns what the other members are told of an error that ended an operation here.

    Args:
        error: What the operation raised.
        where: The operation and the rank.
    """
    if isinstance(error, TelegradError):
        return error
    kind = type(error)
    if isinstance(error, Exception):
        error.add_note(f"raised in {where}")
        return error
    name = f"{kind.__module__}:{kind.__qualname__}"
    return RemoteError(f"{where} was interrupted ({kind.__name__})", type_name=name)
