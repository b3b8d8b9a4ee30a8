"""The value of an RRef in words: its description in a message, its class, its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from telegrad.errors import (
    InvalidUseError,
    NotInitializedError,
    OwnerLostError,
    ValueNotFoundError,
)

if TYPE_CHECKING:
    from telegrad.errors import WorkerLostError
    from telegrad.rpc.future.future import Future
    from telegrad.rpc.rref.protocol import ForkId, RRefId
    from telegrad.types import WorkerInfo

# Values of these classes never change, so that a copy is as good as the value.
CONSTANTS: Final = (type(None), bool, int, float, str, bytes)
LONGEST_CONSTANT = 256  # characters or bytes that are sent to a creator that may not want them
LARGEST_CONSTANT = 2**62


@dataclass(frozen=True, slots=True)
class Arrival:
    """An RRef that came in a message, as its sender described it."""

    rref: RRefId
    fork: ForkId
    owner: WorkerInfo
    type_name: str
    failed: bool = False


def released_error(owner: WorkerInfo) -> InvalidUseError:
    """Returns the error for a use after `release()`."""
    return InvalidUseError(
        f"this RRef to a value at {owner.name!r} was released; "
        "use it before release(), or inside its `with` block"
    )


def shut_down_error(me: WorkerInfo) -> NotInitializedError:
    """Returns the error for the RRefs of a worker that was shut down."""
    return NotInitializedError(
        f"the agent {me.name!r} was shut down, and its RRefs with it; "
        "call rpc.init_rpc() and create the values again"
    )


def gone_error(rref: RRefId) -> ValueNotFoundError:
    """Returns the error for a value that its owner does not have."""
    return ValueNotFoundError(
        f"the value of RRef {rref.creator}.{rref.number} is not at its owner: its creation was "
        "given up, or every worker that held it let go or was lost"
    )


def owner_lost_error(owner: WorkerInfo, lost: WorkerLostError | None) -> OwnerLostError:
    """Returns the error for a value whose owner is lost."""
    reason = lost.reason if lost is not None else "lost"
    return OwnerLostError(
        f"worker {owner.name!r} (incarnation {owner.incarnation}) owned this RRef's value and "
        f"is lost ({reason}); create the value again on a living worker",
        worker=owner.name,
        incarnation=owner.incarnation,
        last_seen=0.0 if lost is None else lost.last_seen,
        reason=reason,
    )


def type_of(value: Future[Any] | None) -> str:
    """Returns the name of the class of a value that is there; else ""."""
    there = value is not None and value.done() and value.exception() is None
    return name_of_class(type(value.value())) if value is not None and there else ""


def name_of_class(cls: type) -> str:
    """Returns `module.qualname`, or the bare name of a builtin."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def word_of(value: object) -> object:
    """Returns the reply of an owner to the creator of a value.

    It is the name of its class; or `[value]`, if that is small and never changes.

    >>> word_of(7), word_of([7])
    ([7], 'list')
    """
    cls = type(value)
    if cls in CONSTANTS:
        if cls is int:
            fits = -LARGEST_CONSTANT < value < LARGEST_CONSTANT  # type: ignore[operator]
        else:
            sized = cls in (str, bytes)
            fits = not sized or len(value) <= LONGEST_CONSTANT  # type: ignore[arg-type]
        if fits:
            return [value]
    return name_of_class(cls)
