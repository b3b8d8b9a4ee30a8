"""The messages between the members of a group, as bytes or plain wire values.

collectives.push     data of one step of an operation, behind the body as a buffer
collectives.entered  the sender is in the operation; it may add that it has data which waits for
                     `ready`, or that it can enter no other operation
collectives.refused  the sender does not enter the operation: its own arguments were wrong
collectives.ready    the receiver may send all its data of this operation to the sender
collectives.abort    the group is over, from an operation on, with this cause; or its messages
                     between these two
collectives.left     the sender takes part in no later operation
collectives.form     the sender forms a group with the receiver, the n-th of these two
collectives.unformed that failed, with this cause

The first four name the group, the operation and the sender's call, so that the receiver can
compare it with its own. They are many, and short: bytes at fixed places, which take a fifth of the
functions that plain values take. Any message may overtake any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, final

from telegrad.errors import DecodeError, RemoteError
from telegrad.types import Shape
from telegrad.wire import Buffer, decode, decode_exception, encode, encode_exception

T = TypeVar("T")


# -- plain values: each field of a message in its place ------------------------------------------


def _plain(value: Any) -> object:
    match value:
        case BaseException():
            return encode_exception(value)
        case _Message():
            return value.to_wire()
        case tuple():  # GroupKey, too
            return [_plain(each) for each in value]
        case Mapping():
            return [list(each) for each in value.items()]
    return value


class _Message:
    """A message whose fields travel as plain values, each in its place."""

    __slots__ = ()
    _readers: ClassVar[tuple[Callable[[object], Any], ...]]  # of the fields, in their order

    def to_wire(self) -> list[object]:
        """Returns the message as plain values."""
        return [_plain(getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]

    @classmethod
    def from_wire(cls, body: object) -> Self:
        """Returns a message from plain values; raises DecodeError."""
        if not isinstance(body, list) or len(body) != len(cls._readers):
            raise DecodeError(f"not the values of {cls.__name__}")
        values = [reader(value) for reader, value in zip(cls._readers, body, strict=True)]
        return cls(*values)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise DecodeError("a text was expected")


def _integer(value: object) -> int:
    if type(value) is int:
        return value
    raise DecodeError("an integer was expected")


def _list_of(reader: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    def read(value: object) -> tuple[T, ...]:
        if isinstance(value, list):
            return tuple(map(reader, value))
        raise DecodeError("a list was expected")

    return read


def _or_none(reader: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else reader(value)


_integers = _list_of(_integer)
_shapes = _list_of(_integers)


def _counts(value: object) -> dict[int, int]:
    try:
        return dict(_list_of(_integers)(value))  # type: ignore[arg-type]  # pairs, or an error
    except ValueError:
        raise DecodeError("tags and counts were expected") from None


def _key(value: object) -> GroupKey:
    if isinstance(value, list) and len(value) == 2:
        return GroupKey(_text(value[0]), _integer(value[1]))
    raise DecodeError("the key of a group was expected")


def _cause(plain: object) -> BaseException:
    try:
        return decode_exception(plain)
    except DecodeError:
        return RemoteError("the group is over, and nothing readable says why")


# -- signatures: the calls of two ranks, in a form that can be compared --------------------------

# Operations for which all shapes may differ between ranks; of `scatter` each receiver compares its
# own part.
_FREE_SHAPE = frozenset({"all_gather", "all_to_all", "gather", "scatter"})
# Operations for which the lengths of the first axis may differ.
_FREE_LENGTH = frozenset({"all_gather_single", "all_to_all_single"})
_TWINS = {"recv": "send", "recv_object_list": "send_object_list"}
_TO_ROOT = frozenset({"gather", "gather_object", "reduce"})  # for them the root is called dst


@final
@dataclass(frozen=True, slots=True)
class Signature(_Message):
    """One call of a collective operation; every member must make the same one.

    Attributes:
        operation: The name of the function.
        op: The name of the ReduceOp; empty if there is none.
        root: The rank in the job that the data comes from or goes to; -1 if there is none.
        dtype: The label of the dtype; empty if there is no array.
        shape: The shape of the array; None if there is none.
        parts: The shapes of the arrays for each rank, or that each rank gets; empty if the
            operation has none.
        wanted: The shapes that the caller expects from each rank; empty if it states none.
        label: The caller's name for the operation; empty if it gave none.
        calls: The calls that go out together as this one; empty for a single call.
        terms: The backend and thresholds of the group, if they are not the default ones.
    """

    operation: str
    op: str = ""
    root: int = -1
    dtype: str = ""
    shape: Shape | None = None
    parts: tuple[Shape, ...] = ()
    wanted: tuple[Shape, ...] = ()
    label: str = ""
    calls: tuple[Signature, ...] = ()
    terms: str = ""

    def fits(self, other: Signature) -> bool:
        """Returns True if two ranks with these calls take part in one operation.

        >>> three = Signature(operation="all_reduce", op="SUM", dtype="float32", shape=(3,))
        >>> three.fits(Signature(operation="all_reduce", op="SUM", dtype="float32", shape=(4,)))
        False
        """
        return self is other or self.compared() == other.compared()

    def compared(self) -> tuple[object, ...]:
        """Returns what is equal on all ranks whose calls fit each other."""
        shape: object = (self.shape, self.parts)
        if self.operation in _FREE_SHAPE:
            shape = None
        elif self.operation in _FREE_LENGTH and self.shape:
            shape = self.shape[1:]
        verb = _TWINS.get(self.operation, self.operation)
        calls = tuple(each.compared() for each in self.calls)
        return verb, self.op, self.root, self.dtype, self.label, shape, calls, self.terms

    def __str__(self) -> str:
        """Returns the signature in the form of a call.

        >>> print(Signature(operation="broadcast", root=1, dtype="float32", shape=(3,)))
        broadcast(src=1, dtype=float32, shape=(3,))
        """
        parts = [f"op={self.op}"] if self.op else []
        root = "dst" if self.operation in _TO_ROOT else "src"
        parts += [f"{root}={self.root}"] if self.root >= 0 else []
        parts += [f"dtype={self.dtype}"] if self.dtype else []
        parts += [f"shape={self.shape}"] if self.shape is not None else []
        parts += [f"parts={list(self.parts)}"] if self.parts else []
        parts += [f"wanted={list(self.wanted)}"] if self.wanted else []
        parts += [str(each) for each in self.calls]
        call = f"{self.operation}({', '.join(parts)})"
        call = f"{call} for {self.label!r}" if self.label else call
        return f"{call} by {self.terms}" if self.terms else call

    _readers = (
        *(_text, _text, _integer, _text, _or_none(_integers), _shapes, _shapes, _text),
        *(_list_of(lambda body: Signature.from_wire(body)), _text),
    )


@cache
def dtype_label(dtype: Any) -> str:
    """Returns a text for a dtype that is equal on hosts which lay the dtype out equally.

    >>> import numpy as np
    >>> dtype_label(np.dtype("float32")), dtype_label(np.dtype(">f4"))
    ('float32', '>f4')
    """
    return dtype.str if dtype.str[0] == ">" else str(dtype)


# -- messages ------------------------------------------------------------------------------------

PUSH = "collectives.push"
ENTERED = "collectives.entered"
REFUSED = "collectives.refused"
READY = "collectives.ready"
ABORT = "collectives.abort"
LEFT = "collectives.left"
FORM = "collectives.form"
UNFORMED = "collectives.unformed"

# The number of a push that nothing takes: it makes its receiver look again.
WAKE = -(2**62)

# The number in `entered`.
HERE = 0
DATA_WAITS = 1
BLOCKED = 2

# The number in `abort` of a failure of two ranks alone.
PAIR = -1

# Sender, receiver (ranks in the group) and tag of point-to-point messages; None for operations of
# all members.
Channel: TypeAlias = tuple[int, int, int] | None
# The sender in the channel of a receive from any rank, until one has sent. It is in no message.
ANY = -1


@final
class GroupKey(NamedTuple):
    """The name of a group in messages; all its members compute the same one.

    Attributes:
        members: A digest of the members and their incarnations, in order.
        epoch: Distinguishes groups of the same members. For `new_group` it is the number of the
            first member's call. For the world it is negative and counts how often it was made.
    """

    members: str
    epoch: int


@final
class OperationId(NamedTuple):
    """The name of an operation of a group.

    Attributes:
        sequence: The number of the operation in its channel, from 1.
        channel: The channel; None for operations of all members.
    """

    sequence: int
    channel: Channel = None

    @property
    def since(self) -> int:
        """The first operation of all members that is over if this one fails."""
        return self.sequence if self.channel is None else 0


# Epoch, sequence, channel, number; the lengths of the digest and of the call, which follow.
_HEAD = struct.Struct("<qqqqqqHI")
_OF_ALL = (-1, -1, -1)  # in place of a channel


@final
class OperationMessage(NamedTuple):
    """The document of push, entered, refused and ready.

    Attributes:
        call: The sender's call, as bytes.
        number: For push the step: from 0 for data, below 0 for signals, or WAKE. For entered HERE,
            DATA_WAITS or BLOCKED. For ready the bytes of point-to-point data that the sender has
            taken from the receiver so far.
    """

    group: GroupKey
    id: OperationId
    call: bytes
    number: int

    @property
    def signature(self) -> Signature:
        """The sender's call."""
        return unpack_call(self.call)

    def pack(self) -> bytes:
        """Returns the message as bytes, behind which data may follow."""
        (members, epoch), (sequence, channel), call, number = self
        digest = members.encode()
        lengths = len(digest), len(call)
        head = _HEAD.pack(epoch, sequence, *(channel or _OF_ALL), number, *lengths)
        return b"".join((head, digest, call))

    @staticmethod
    def unpack(packed: bytes | bytearray) -> tuple[OperationMessage, memoryview]:
        """Returns a message and the data behind it; raises DecodeError for other bytes."""
        if len(packed) < _HEAD.size:
            raise DecodeError(
                f"a message of an operation has at least {_HEAD.size} bytes, not {len(packed)}"
            )
        epoch, sequence, source, to, tag, number, digest, size = _HEAD.unpack_from(packed)
        middle = _HEAD.size + digest
        end = middle + size
        group = _group_of(bytes(packed[_HEAD.size : middle]), epoch)
        call = bytes(packed[middle:end])
        unpack_call(call)  # so that a bad one is refused here
        operation_id = OperationId(sequence, None if to < 0 else (source, to, tag))
        return OperationMessage(group, operation_id, call, number), memoryview(packed)[end:]


@lru_cache(64)
def _group_of(digest: bytes, epoch: int) -> GroupKey:
    try:
        return GroupKey(digest.decode("ascii"), epoch)
    except UnicodeDecodeError:
        raise DecodeError("a message of an operation names no group") from None


@lru_cache(1024)
def pack_call(signature: Signature) -> bytes:
    """Returns a call as bytes."""
    return encode(signature.to_wire()).document


@lru_cache(1024)
def unpack_call(packed: bytes) -> Signature:
    """Returns a call from bytes; raises DecodeError for others."""
    return Signature.from_wire(decode(packed))


@lru_cache(1024)
def calls_fit(one: bytes, other: bytes) -> bool:
    """Returns True if two ranks with these calls take part in one operation."""
    return unpack_call(one).fits(unpack_call(other))


def pack_cause(error: BaseException) -> bytes:
    """Returns an error as bytes, the data of `refused`."""
    return encode(encode_exception(error)).document


def unpack_cause(packed: Buffer) -> BaseException:
    """Returns an error from bytes; raises DecodeError for others."""
    return _cause(decode(bytes(packed)))


@final
@dataclass(frozen=True, slots=True)
class AbortMessage(_Message):
    """The group is over.

    Attributes:
        since: The first operation of all members that is over. PAIR if the group goes on, and only
            the sends and receives between the sender and the receiver are over.
        cause: The error that ended it.
    """

    group: GroupKey
    since: int
    cause: BaseException

    _readers = _key, _integer, _cause


@final
@dataclass(frozen=True, slots=True)
class LeftMessage(_Message):
    """The sender has left the group.

    Attributes:
        sequence: The number of operations of all members that the sender took part in.
        sent: The number of messages that it sent to the receiver, by tag.
        taken: The number of messages that it took from the receiver, by tag.
    """

    group: GroupKey
    sequence: int
    sent: Mapping[int, int]
    taken: Mapping[int, int]

    _readers = _key, _integer, _counts, _counts


@final
@dataclass(frozen=True, slots=True)
class FormMessage(_Message):
    """The sender calls new_group or shrink_group.

    Attributes:
        place: The number of groups that the sender has tried to form with the receiver before.
        number: The number of groups it has tried to form with anyone, this one included.
        members: A digest of the members and their incarnations, in order.
        ranks: The members' ranks in the job.
        seen: The number of the receiver's own attempt at this place; 0 if it is not known yet.
        agreed: The numbers of the members' attempts, in their order, once all members have seen the
            sender's attempt and all fit; empty before.
        lost: For shrink_group the ranks that the sender leaves out because they are lost; None for
            new_group.
        backend: The name of the backend that the sender's call asks for.
        thresholds: The thresholds that it asks for; None for those of the first member.
    """

    place: int
    number: int
    members: str
    ranks: tuple[int, ...]
    seen: int = 0
    agreed: tuple[int, ...] = ()
    lost: tuple[int, ...] | None = None
    backend: str = ""
    thresholds: tuple[int, ...] | None = None

    _readers = (
        *(_integer, _integer, _text, _integers, _integer, _integers),
        *(_or_none(_integers), _text, _or_none(_integers)),
    )


@final
@dataclass(frozen=True, slots=True)
class UnformedMessage(_Message):
    """A call of new_group has failed at the sender, or the group from it has.

    Attributes:
        place: The place of the `form` message.
        failure: The name of the failure: a worker that has raised it need not raise it again.
        cause: The error.
    """

    place: int
    failure: str
    cause: BaseException

    _readers = _integer, _text, _cause
