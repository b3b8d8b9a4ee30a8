"""The parts that all verbs share: checked arguments, signatures, and the two ways to run a call."""

from __future__ import annotations

import numbers
from typing import TypeVar

from telegrad.collectives.groups import Groups
from telegrad.collectives.messages import Signature, dtype_label
from telegrad.collectives.operation import EAGER_BYTES, Call
from telegrad.collectives.process_group import ProcessGroup, Work
from telegrad.collectives.reduction import Staged
from telegrad.rpc.seams import current_agent
from telegrad.types import Array

__all__ = [
    "check_tag",
    "current_world",
    "eager_bytes",
    "group_of",
    "partner_of",
    "place_of",
    "run_call",
    "signature_of",
]

T = TypeVar("T")


def run_call(
    group: ProcessGroup, call: Call[T], async_op: bool, timeout: float | None
) -> Work[T] | T:
    """Starts a call and returns its Work, or runs it in this thread and returns its value."""
    return group.start(call, timeout) if async_op else group.call(call, timeout)


def current_world() -> ProcessGroup:
    """Returns the group of all workers; raises NotInitializedError if there is none."""
    return current_agent().attachments[Groups].current_world()


def group_of(group: object) -> ProcessGroup:
    """Returns the group that an argument means.

    Raises:
        TypeError: It is neither a group nor None.
        NotInitializedError: It is None, and there is no group of all workers.
    """
    if group is None:
        return current_world()
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be a ProcessGroup or None, not {group!r}; new_group(ranks) makes one"
        )
    return group


def place_of(what: str, rank: object, group: ProcessGroup) -> int:
    """Returns the rank in the group of a rank in the job.

    Raises:
        TypeError: The rank is no integer.
        ValueError: The rank is not a member of the group.
    """
    if isinstance(rank, bool) or not isinstance(rank, numbers.Integral):
        raise TypeError(f"{what} must be a rank of the job, not {rank!r}")
    try:
        return group.ranks.index(int(rank))
    except ValueError:
        raise ValueError(
            f"{what} {rank} is no member of group {group.name!r} (ranks: {list(group.ranks)}); "
            f"{what} is a rank of the job"
        ) from None


def partner_of(verb: str, what: str, rank: object, group: ProcessGroup) -> int:
    """Returns the rank in the group of the other end of a message; raises as `place_of`."""
    place = place_of(what, rank, group)
    if place == group.rank:
        raise ValueError(f"{verb} needs another rank, and {what} {rank} is this one")
    return place


def check_tag(tag: object) -> int:
    """Returns a tag.

    Raises:
        TypeError: The tag is no integer.
        ValueError: The tag is negative.
    """
    if isinstance(tag, bool) or not isinstance(tag, numbers.Integral):
        raise TypeError(f"tag must be an integer, not {tag!r}")
    if tag < 0:
        raise ValueError(f"tag must not be negative (got {tag})")
    return int(tag)


def eager_bytes(staged: Staged, message_bytes: int) -> int:
    """Returns the bytes of an array that are sent to a rank before it asks for them."""
    return staged.flat.nbytes if message_bytes <= EAGER_BYTES else 0


def signature_of(
    operation: str, array: Array, label: object, *, op: str = "", root: int = -1
) -> Signature:
    """Returns the signature of a call with one array; raises TypeError if the label is no text."""
    if not isinstance(label, str):
        raise TypeError(f"label must be a str, not {label!r}")
    return Signature(
        operation=operation,
        op=op,
        root=root,
        dtype=dtype_label(array.dtype),
        shape=tuple(array.shape),
        label=label,
    )
