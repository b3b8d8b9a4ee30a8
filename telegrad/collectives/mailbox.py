"""The messages that one member has got for the operations of one group; pure.

    deliver ──▶ entered here?  no ──▶ kept until it is
                    │ yes
                    ▼
              fits the call made here?  no ──▶ CollectiveMismatchError
                    │ yes
                    ▼
                  Slot: data by (sender, step), ranks that are ready, ranks that ask if this one is

Messages may come in any order, and before this member has entered the operation. Each one is
compared with this member's own call, even if nothing waits for the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias, final

from telegrad.collectives.messages import (
    ANY,
    DATA_WAITS,
    ENTERED,
    PUSH,
    READY,
    REFUSED,
    Channel,
    OperationId,
    OperationMessage,
    Signature,
    calls_fit,
    pack_call,
    unpack_call,
    unpack_cause,
)
from telegrad.errors import CollectiveMismatchError
from telegrad.wire import Buffer

# Limit of small data on its way to a rank that has not requested it: for operations that were
# started and are not over, and for messages not yet received. It allows some dozens of small
# messages and is small beside the data that a rank works on.
ALLOWANCE_BYTES = 4 * 2**20
MESSAGE_BYTES = 512  # the cost of a message beside its data

_TERMS_ADVICE = (
    "all ranks of a group need the same table of thresholds (thresholds=, TELEGRAD_THRESHOLDS) and "
    "the same backend"
)

_Kept: TypeAlias = tuple[int, str, OperationMessage, Buffer]


@final
class OperationSlot:
    """The messages for one operation that this member has entered.

    Attributes:
        signature: The call that this member made.
        arrived: Data by sender and step; who needs it takes it out.
        heard: The ranks that are known to have entered the operation.
        ready: The ranks to which all data may be sent.
        wanting: The ranks that hold their data back until this one tells them that it is ready.
        asked: True if another rank asked which ranks have entered.
        calls: The calls of the ranks that were heard, as they state them.
    """

    __slots__ = (
        "_packed",
        "arrived",
        "asked",
        "calls",
        "heard",
        "id",
        "ready",
        "signature",
        "wanting",
    )

    def __init__(self, operation_id: OperationId, signature: Signature) -> None:
        self.id = operation_id
        self.signature = signature
        self._packed = b""  # most operations on one host send no message
        self.arrived: dict[tuple[int, int], Buffer] = {}
        self.heard: set[int] = set()
        self.ready: set[int] = set()
        self.wanting: set[int] = set()
        self.asked = False
        self.calls: dict[int, Signature] = {}

    @property
    def call(self) -> bytes:
        """The call that this member made, as bytes."""
        if not self._packed:
            self._packed = pack_call(self.signature)
        return self._packed


@final
class Mailbox:
    """The operations of one group that this member is in, and messages that came too early.

    Args:
        group: The group's name, for errors.
        rank: This member's rank in the group.
        describe: Names a member by its rank in the group, for errors.
    """

    def __init__(self, group: str, rank: int, describe: Callable[[int], str]) -> None:
        self._group = group
        self._rank = rank
        self._describe = describe
        self._slots: dict[OperationId, OperationSlot] = {}
        self._early: dict[OperationId, list[_Kept]] = {}
        self._entered: dict[Channel, int] = {}
        self._declined: dict[Channel, bytes] = {}  # the errors of refused receives

    @property
    def early(self) -> int:
        """The number of messages for operations that this member has not entered yet."""
        return sum(len(kept) for kept in self._early.values())

    def enter(self, channel: Channel, signature: Signature) -> OperationSlot:
        """Enters the next operation of a channel.

        Raises:
            CollectiveMismatchError: Another member made a different call.
            Exception: The error with which another member has refused it.
        """
        if self._declined and channel is not None:
            source, to, tag = channel
            for each in [c for c in self._declined if c and c[1:] == (to, tag)]:
                if source in (ANY, each[0]):
                    del self._declined[each]
        slot = OperationSlot(self.next(channel), signature)
        self._entered[channel] = slot.id.sequence
        self._slots[slot.id] = slot
        for kept in self._early.pop(slot.id, ()):
            self._apply(slot, *kept)
        return slot

    def refuse(self, operation_id: OperationId) -> None:
        """Passes over the next operation of a channel, so that members who all do stay in step."""
        self._entered[operation_id.channel] = operation_id.sequence
        self._early.pop(operation_id, None)

    def decline(self, operation_id: OperationId, cause: bytes) -> bool:
        """Records that a receive was refused; its message stays for the next receive.

        Returns:
            True if the sender waits, and has to be told.
        """
        self._declined[operation_id.channel] = cause
        return any(kind == ENTERED for _, kind, _, _ in self._early.get(operation_id, ()))

    def declined(self, kind: str, message: OperationMessage) -> bytes | None:
        """Returns the error to tell a sender that waits for a receive that was refused, or None."""
        if kind != ENTERED or message.id != self.next(message.id.channel):
            return None
        return self._declined.get(message.id.channel)

    def next(self, channel: Channel) -> OperationId:
        """Returns the id of the operation that this member enters next in a channel."""
        return OperationId(self._entered.get(channel, 0) + 1, channel)

    def entered(self, channel: Channel) -> int:
        """Returns the number of operations of a channel that this member has entered."""
        return self._entered.get(channel, 0)

    def counts(self, source: int, destination: int) -> dict[int, int]:
        """Returns the number of operations of two ranks that this member has entered, by tag."""
        return {
            channel[2]: count
            for channel, count in self._entered.items()
            if channel is not None and channel[:2] == (source, destination)
        }

    def deliver(
        self, source: int, kind: str, message: OperationMessage, data: Buffer
    ) -> OperationSlot | None:
        """Takes a message from another member.

        Args:
            source: The sender's rank in the group.
            kind: The kind of the envelope.
            message: The body.
            data: The data of a push.

        Returns:
            The slot that it changed; None if the message is kept for later, or comes too late.

        Raises:
            CollectiveMismatchError: This member made a different call.
            Exception: The error with which the other member has refused the operation.
        """
        slot = self._slots.get(message.id)
        if slot is not None:
            self._apply(slot, source, kind, message, data)
            return slot
        if message.id.sequence > self.entered(message.id.channel):
            kept = self._early.setdefault(message.id, [])
            kept.append((source, kind, message, data))
        return None

    def sender(self, tag: int) -> int | None:
        """Returns the rank whose message with a tag came first and was not received, else None."""
        for operation_id, kept in self._early.items():
            channel = operation_id.channel
            if channel is not None and channel == (kept[0][0], self._rank, tag):
                return channel[0]
        return None

    def leave(self, slot: OperationSlot) -> None:
        """Forgets an operation that has ended here."""
        self._slots.pop(slot.id, None)

    def drop(self, over: Callable[[OperationId], bool]) -> None:
        """Forgets early messages for operations that will never be entered."""
        self._early = {key: kept for key, kept in self._early.items() if not over(key)}

    def _apply(
        self, slot: OperationSlot, source: int, kind: str, message: OperationMessage, data: Buffer
    ) -> None:
        if kind == REFUSED:
            raise unpack_cause(data)
        if message.call != slot.call and not calls_fit(message.call, slot.call):
            calls = {self._rank: slot.signature, source: message.signature}
            raise mismatch_of(self._group, slot.id, calls, self._describe)
        slot.heard.add(source)
        slot.calls[source] = unpack_call(message.call)
        if kind == PUSH:
            slot.arrived[source, message.number] = data
        elif kind == READY:
            slot.ready.add(source)
        elif kind == ENTERED and message.number == DATA_WAITS:
            slot.wanting.add(source)
        else:
            slot.asked = True


@final
class MessageAllowance:
    """Data that leaves without a request, of operations or of messages; the group's lock guards it.

    The receiver of a message tells when it has taken it. The data of an operation counts until the
    operation is over here, as its receivers have all entered it then.
    """

    def __init__(self) -> None:
        self._pushed = Counter[int]()  # their cost, by receiver
        self._confirmed = Counter[int]()  # the part of it that the receiver has taken
        self._taken = Counter[int]()  # cost of those taken here, by sender

    def take(self, to: int, nbytes: int) -> int:
        """Returns the cost of unrequested data to a member, and counts it; 0 if it must wait."""
        cost = nbytes + MESSAGE_BYTES
        if self._pushed[to] - self._confirmed[to] + cost > ALLOWANCE_BYTES:
            return 0
        self._pushed[to] += cost
        return cost

    def give_back(self, pushed: Mapping[int, int]) -> None:
        """Records that an operation is over which has pushed this cost to each member."""
        for to, cost in pushed.items():
            self._pushed[to] -= cost

    def confirm(self, to: int, cost: int) -> None:
        """Records the cost of all messages that a member has taken, as it has told."""
        self._confirmed[to] = max(self._confirmed[to], cost)

    def note_taken(self, source: int, cost: int) -> None:
        """Records the cost of further messages of a member that were taken."""
        self._taken[source] += cost

    def taken_from(self, source: int) -> int:
        """Returns the cost of all messages of a member that were taken."""
        return self._taken[source]


def mismatch_of(
    group: str,
    operation_id: OperationId,
    calls: Mapping[int, Signature],
    describe: Callable[[int], str],
) -> CollectiveMismatchError:
    """Returns the error that the calls of some ranks do not fit.

    Args:
        group: The group's name.
        operation_id: The operation.
        calls: The calls, by rank in the group.
        describe: Names a member by its rank in the group.
    """
    said = ", but ".join(f"{describe(r)} called {calls[r]}" for r in sorted(calls))
    advice = (
        "all ranks must call the same operations in the same order, with the same op, src, dst, "
        "dtype and shape"
    )
    if len({call.terms for call in calls.values()}) > 1:
        advice = _TERMS_ADVICE
    return CollectiveMismatchError(
        f"operation {operation_id.sequence} of group {group!r}: {said}; {advice}"
    )
