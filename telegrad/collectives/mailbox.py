"""What has arrived for the operations of one group at one member; pure.

    deliver ──▶ entered here?  no ──▶ kept until it is
                    │ yes
                    ▼
              fits what is called here?  no ──▶ CollectiveMismatchError
                    │ yes
                    ▼
                  Slot: data by (sender, step), who is ready, who wants to hear that we are

Messages may come in any order, and before this member has entered the operation. Each is compared
with what this member called, whether anybody waits for it or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from telegrad.collectives.messages import (
    DATA_WAITS,
    ENTERED,
    PUSH,
    READY,
    Channel,
    OperationId,
    OperationMessage,
    Signature,
)
from telegrad.errors import CollectiveMismatchError
from telegrad.types import Shape
from telegrad.wire import Buffer

__all__ = ["Mailbox", "Slot"]

_Kept: TypeAlias = tuple[int, str, OperationMessage, Buffer]


@final
class Slot:
    """What has arrived for one operation that this member has entered.

    Attributes:
        id: Which operation.
        signature: What this member called.
        arrived: Data by sender and step, until it is taken.
        heard: The ranks that are known to have entered.
        ready: The ranks that all data may be sent to.
        wanting: The ranks whose data waits until they hear that this one is ready.
        asked: Whether another rank wants to know who has entered.
        shapes: What the ranks that were heard say of their arrays.
    """

    __slots__ = ("arrived", "asked", "heard", "id", "ready", "shapes", "signature", "wanting")

    def __init__(self, operation_id: OperationId, signature: Signature) -> None:
        self.id = operation_id
        self.signature = signature
        self.arrived: dict[tuple[int, int], Buffer] = {}
        self.heard: set[int] = set()
        self.ready: set[int] = set()
        self.wanting: set[int] = set()
        self.asked = False
        self.shapes: dict[int, Shape | None] = {}

    def take(self, source: int, step: int) -> Buffer | None:
        """Returns data that has arrived, once."""
        return self.arrived.pop((source, step), None)


@final
class Mailbox:
    """The operations of one group that this member is in, and what came too early.

    Args:
        group: The group's name, for errors.
        rank: This member's rank in it.
        describe: Names a member by its rank in the group, for errors.
    """

    def __init__(self, group: str, rank: int, describe: Callable[[int], str]) -> None:
        self._group = group
        self._rank = rank
        self._describe = describe
        self._slots: dict[OperationId, Slot] = {}
        self._early: dict[OperationId, list[_Kept]] = {}
        self._entered: dict[Channel, int] = {}

    @property
    def early(self) -> int:
        """How many messages wait for operations that this member has not entered."""
        return sum(len(kept) for kept in self._early.values())

    def enter(self, channel: Channel, signature: Signature) -> Slot:
        """Enters the next operation of a channel.

        Raises:
            CollectiveMismatchError: Another member called something else.
        """
        slot = Slot(self.next(channel), signature)
        self._entered[channel] = slot.id.sequence
        self._slots[slot.id] = slot
        for kept in self._early.pop(slot.id, ()):
            self._apply(slot, *kept)
        return slot

    def next(self, channel: Channel) -> OperationId:
        """Returns which operation of a channel this member enters next."""
        return OperationId(self.entered(channel) + 1, channel)

    def entered(self, channel: Channel) -> int:
        """Returns how many operations of a channel this member has entered."""
        return self._entered.get(channel, 0)

    def counts(self, source: int, destination: int) -> dict[int, int]:
        """Returns how many operations of two ranks this member has entered, by tag."""
        return {
            channel[2]: count
            for channel, count in self._entered.items()
            if channel is not None and channel[:2] == (source, destination)
        }

    def deliver(
        self, source: int, kind: str, message: OperationMessage, data: Buffer
    ) -> Slot | None:
        """Takes a message of another member.

        Args:
            source: Its rank in the group.
            kind: The kind of the envelope.
            message: Its body.
            data: What a push brings.

        Returns:
            The slot that it changed; None if it is kept for later, or comes too late.

        Raises:
            CollectiveMismatchError: This member called something else.
        """
        slot = self._slots.get(message.id)
        if slot is not None:
            self._apply(slot, source, kind, message, data)
            return slot
        if message.id.sequence > self.entered(message.id.channel):
            kept = self._early.setdefault(message.id, [])
            kept.append((source, kind, message, data))
        return None

    def leave(self, slot: Slot) -> None:
        """Forgets an operation that is over here."""
        self._slots.pop(slot.id, None)

    def drop(self, over: Callable[[OperationId], bool]) -> None:
        """Forgets what came for operations that will not be entered."""
        self._early = {key: kept for key, kept in self._early.items() if not over(key)}

    def _apply(
        self, slot: Slot, source: int, kind: str, message: OperationMessage, data: Buffer
    ) -> None:
        if not slot.signature.fits(message.signature):
            raise self._mismatch(slot, source, message.signature)
        slot.heard.add(source)
        slot.shapes[source] = message.signature.shape
        if kind == PUSH:
            slot.arrived[source, message.number] = data
        elif kind == READY:
            slot.ready.add(source)
        elif kind == ENTERED and message.number == DATA_WAITS:
            slot.wanting.add(source)
        else:
            slot.asked = True

    def _mismatch(self, slot: Slot, source: int, theirs: Signature) -> CollectiveMismatchError:
        calls = sorted([(self._rank, slot.signature), (source, theirs)], key=lambda call: call[0])
        said = ", but ".join(f"{self._describe(r)} called {called}" for r, called in calls)
        return CollectiveMismatchError(
            f"operation {slot.id.sequence} of group {self._group!r}: {said}; all ranks must call "
            "the same operations in the same order, with the same op, src, dtype and shape"
        )
