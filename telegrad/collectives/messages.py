"""What the members of a group say to each other, as plain wire values.

collectives.push     data of one step of an operation, behind the body as a buffer
collectives.entered  the sender is in the operation; may have data that waits for `ready`, or say
                     that it can enter no other one
collectives.ready    the receiver may send all its data of this operation to the sender
collectives.abort    the group is over, from an operation on, with this cause
collectives.left     the sender takes part in no later operation
collectives.form     the sender forms a group with the receiver, the n-th of these two
collectives.unformed that failed, with this cause

The first three name the group, the operation and what the sender called, so that whoever gets one
can compare. Any of them may overtake any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from telegrad.errors import DecodeError, RemoteError
from telegrad.types import Shape
from telegrad.wire import decode_exception, encode_exception

__all__ = [
    "ABORT",
    "BLOCKED",
    "DATA_WAITS",
    "ENTERED",
    "FORM",
    "HERE",
    "LEFT",
    "PUSH",
    "READY",
    "UNFORMED",
    "AbortMessage",
    "Channel",
    "FormMessage",
    "GroupKey",
    "LeftMessage",
    "OperationId",
    "OperationMessage",
    "Signature",
    "UnformedMessage",
    "dtype_label",
]


# -- what a rank called, in a form that two ranks can compare ------------------------------------

_FREE_SHAPE = frozenset({"all_gather"})  # each rank has one of its own
_TWINS = {"recv": "send"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One call of a collective operation, as every member must have made it.

    Attributes:
        operation: The verb.
        op: The name of the ReduceOp; empty where there is none.
        root: The rank in the job that the data comes from; -1 where there is none.
        dtype: The label of the dtype; empty where there is no array.
        shape: Of the array; None where there is none.
        label: What the caller calls it; empty where it said nothing.
    """

    operation: str
    op: str = ""
    root: int = -1
    dtype: str = ""
    shape: Shape | None = None
    label: str = ""

    def fits(self, other: Signature) -> bool:
        """Tells whether two ranks that called these take part in one operation.

        >>> three = Signature(operation="all_reduce", op="SUM", dtype="float32", shape=(3,))
        >>> three.fits(Signature(operation="all_reduce", op="SUM", dtype="float32", shape=(4,)))
        False
        """
        same = (self._verb, self.op, self.root, self.dtype, self.label) == (
            other._verb,
            other.op,
            other.root,
            other.dtype,
            other.label,
        )
        return same and (self.shape == other.shape or self.operation in _FREE_SHAPE)

    @property
    def _verb(self) -> str:
        return _TWINS.get(self.operation, self.operation)

    def __str__(self) -> str:
        """Writes it as a call.

        >>> print(Signature(operation="broadcast", root=1, dtype="float32", shape=(3,)))
        broadcast(src=1, dtype=float32, shape=(3,))
        """
        parts = [f"op={self.op}"] if self.op else []
        parts += [f"src={self.root}"] if self.root >= 0 else []
        parts += [f"dtype={self.dtype}", f"shape={self.shape}"] if self.shape is not None else []
        call = f"{self.operation}({', '.join(parts)})"
        return f"{call} for {self.label!r}" if self.label else call


def dtype_label(dtype: Any) -> str:
    """Returns a dtype in words that are the same on every host that lays it out the same.

    >>> import numpy as np
    >>> dtype_label(np.dtype("float32")), dtype_label(np.dtype(">f4"))
    ('float32', '>f4')
    """
    return dtype.str if dtype.str[0] == ">" else str(dtype)


# ------------------------------------------------------------------------------------------------

PUSH = "collectives.push"
ENTERED = "collectives.entered"
READY = "collectives.ready"
ABORT = "collectives.abort"
LEFT = "collectives.left"
FORM = "collectives.form"
UNFORMED = "collectives.unformed"

# What `entered` says beside that.
HERE = 0
DATA_WAITS = 1
BLOCKED = 2

# Sender, receiver (ranks in the group) and tag of messages that are matched with each other;
# None for what all members take part in.
Channel: TypeAlias = tuple[int, int, int] | None


@final
@dataclass(frozen=True, slots=True)
class GroupKey:
    """Names a group in the messages of its members, who all find the same name.

    Attributes:
        members: A digest of the members and their incarnations, in order.
        epoch: Tells the groups of the same members apart. For those of `new_group` it is the
            number of the first member's call; for the world, how often these have made it, below 0.
    """

    members: str
    epoch: int


@final
@dataclass(frozen=True, slots=True)
class OperationId:
    """Names an operation of a group.

    Attributes:
        sequence: Counts the operations of the channel, from 1.
        channel: Whose; None for those of all members.
    """

    sequence: int
    channel: Channel = None

    @property
    def since(self) -> int:
        """From which operation of all members on a group is over if this one fails."""
        return self.sequence if self.channel is None else 0


@final
@dataclass(frozen=True, slots=True)
class OperationMessage:
    """The body of push, entered and ready.

    Attributes:
        group: Which group.
        id: Which operation.
        signature: What the sender called.
        number: push: the step, from 0 for data, below 0 for signals. entered: HERE, DATA_WAITS or
            BLOCKED. ready: how many bytes of point-to-point data of the receiver's the sender has
            taken so far.
    """

    group: GroupKey
    id: OperationId
    signature: Signature
    number: int

    def to_wire(self) -> list[object]:
        """Returns it as plain values."""
        called, channel = self.signature, self.id.channel
        return [
            self.group.members,
            self.group.epoch,
            self.id.sequence,
            None if channel is None else list(channel),
            [called.operation, called.op, called.root, called.dtype, called.label],
            None if called.shape is None else list(called.shape),
            self.number,
        ]

    @staticmethod
    def from_wire(body: object) -> OperationMessage:
        """Returns it from plain values; raises DecodeError."""
        match body:
            case [
                str(members),
                int(epoch),
                int(sequence),
                channel,
                [str(operation), str(op), int(root), str(dtype), str(label)],
                shape,
                int(number),
            ]:
                signature = Signature(
                    operation=operation,
                    op=op,
                    root=root,
                    dtype=dtype,
                    shape=None if shape is None else _integers(shape),
                    label=label,
                )
                operation_id = OperationId(sequence, _channel(channel))
                return OperationMessage(GroupKey(members, epoch), operation_id, signature, number)
        raise DecodeError("not a message of a collective operation")


@final
@dataclass(frozen=True, slots=True)
class AbortMessage:
    """The group is over.

    Attributes:
        group: Which group.
        since: The first operation of all members that is over.
        cause: Why.
    """

    group: GroupKey
    since: int
    cause: BaseException

    def to_wire(self) -> list[object]:
        """Returns it as plain values."""
        return [self.group.members, self.group.epoch, self.since, encode_exception(self.cause)]

    @staticmethod
    def from_wire(body: object) -> AbortMessage:
        """Returns it from plain values; raises DecodeError."""
        match body:
            case [str(members), int(epoch), int(since), cause]:
                return AbortMessage(GroupKey(members, epoch), since, _cause(cause))
        raise DecodeError("an abort names no group")


@final
@dataclass(frozen=True, slots=True)
class LeftMessage:
    """The sender has left the group.

    Attributes:
        group: Which group.
        sequence: How many operations of all members it took part in.
        sent: How many messages it sent to the receiver, by tag.
        taken: How many messages of the receiver's it took, by tag.
    """

    group: GroupKey
    sequence: int
    sent: Mapping[int, int]
    taken: Mapping[int, int]

    def to_wire(self) -> list[object]:
        """Returns it as plain values."""
        sent, taken = ([list(each) for each in d.items()] for d in (self.sent, self.taken))
        return [self.group.members, self.group.epoch, self.sequence, sent, taken]

    @staticmethod
    def from_wire(body: object) -> LeftMessage:
        """Returns it from plain values; raises DecodeError."""
        match body:
            case [str(members), int(epoch), int(sequence), list(sent), list(taken)]:
                counts = [dict(_pair(each) for each in pairs) for pairs in (sent, taken)]
                return LeftMessage(GroupKey(members, epoch), sequence, *counts)
        raise DecodeError("a member left no group")


@final
@dataclass(frozen=True, slots=True)
class FormMessage:
    """The sender calls new_group.

    Attributes:
        place: How many groups the sender has tried to form with the receiver before.
        number: How many it has tried to form with anyone, this one included.
        members: A digest of the members and their incarnations, in order.
        ranks: The members' ranks in the job.
        seen: The number of the receiver's own try at this place; 0 if it is not known yet.
        agreed: The numbers of the members' tries, in their order, once all of them have seen the
            sender's and they fit; empty before.
    """

    place: int
    number: int
    members: str
    ranks: tuple[int, ...]
    seen: int = 0
    agreed: tuple[int, ...] = ()

    def to_wire(self) -> list[object]:
        """Returns it as plain values."""
        ranks, agreed = list(self.ranks), list(self.agreed)
        return [self.place, self.number, self.members, ranks, self.seen, agreed]

    @staticmethod
    def from_wire(body: object) -> FormMessage:
        """Returns it from plain values; raises DecodeError."""
        match body:
            case [int(place), int(number), str(members), ranks, int(seen), agreed]:
                return FormMessage(
                    place, number, members, _integers(ranks), seen, _integers(agreed)
                )
        raise DecodeError("not a group that is formed")


@final
@dataclass(frozen=True, slots=True)
class UnformedMessage:
    """A call of new_group has failed at the sender, or its group has.

    Attributes:
        place: As in its `form`.
        failure: Names the failure: whoever has raised it need not raise it again.
        cause: What it is.
    """

    place: int
    failure: str
    cause: BaseException

    def to_wire(self) -> list[object]:
        """Returns it as plain values."""
        return [self.place, self.failure, encode_exception(self.cause)]

    @staticmethod
    def from_wire(body: object) -> UnformedMessage:
        """Returns it from plain values; raises DecodeError."""
        match body:
            case [int(place), str(failure), cause]:
                return UnformedMessage(place, failure, _cause(cause))
        raise DecodeError("not a group that failed to form")


def _cause(plain: object) -> BaseException:
    try:
        return decode_exception(plain)
    except DecodeError:
        return RemoteError("the group is over, and nothing readable says why")


def _integers(value: object) -> tuple[int, ...]:
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    raise DecodeError("a list of integers was expected")


def _channel(value: object) -> Channel:
    if value is None:
        return None
    source, destination, tag = _pairwise(value, 3)
    return source, destination, tag


def _pair(value: object) -> tuple[int, int]:
    tag, count = _pairwise(value, 2)
    return tag, count


def _pairwise(value: object, length: int) -> tuple[int, ...]:
    found = _integers(value)
    if len(found) != length:
        raise DecodeError(f"{length} integers were expected")
    return found
