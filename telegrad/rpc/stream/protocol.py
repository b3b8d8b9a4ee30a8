"""Which item of a stream may be sent, and which is the next one to be read. Pure.

    producer (Sender)                               consumer (Receiver)
    next value of the generator
      room? no ─▶ the generator rests
      yes: item 0, 1, 2, ... with its size ────────▶ kept until all before it were taken
                                                     taken, in order
      room again  ◀────────── more(taken so far) ─── once half of the window was taken
    the generator ended: end(how many) ────────────▶ over when so many were taken

Guarantees, under any order of messages:

- T1: the consumer takes every item once, in the order in which the generator yielded them.
- T2: at most WINDOW_ITEMS items, and at most WINDOW_BYTES and one item more, are sent and not
  known to be taken.
- T3: whoever waits is woken: when the producer has no room, what it has sent is enough for the
  consumer to say `more` once it has taken it.
- T4: an old `more` changes nothing, for what it says is a sum.

Neither class is thread-safe; whoever owns one holds a lock around each event.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar, final

from telegrad.errors import DecodeError

__all__ = ["WINDOW_BYTES", "WINDOW_ITEMS", "Receiver", "Sender"]

T = TypeVar("T")

# Small items a second over gRPC between two processes, with 1, 4, 16, 32 and 256 ahead: 350, 2,100,
# 8,700, 10,900 and 14,100 (on a busy machine: the proportions count). Whoever stops reading has had
# that many made in vain.
WINDOW_ITEMS = 32
# Memory of the consumer's, for each stream: some of what is worth the bulk lanes.
WINDOW_BYTES = 8 * 2**20


@final
class Sender:
    """The producer's end: how far it may run ahead.

    Args:
        items: How many items may be sent and not taken.
        size: How many bytes may be, before the item that goes beyond.
    """

    def __init__(self, items: int = WINDOW_ITEMS, size: int = WINDOW_BYTES) -> None:
        self._items = items
        self._size = size
        self._ahead: deque[int] = deque()  # the sizes of what is sent and not taken
        self._ahead_bytes = 0
        self._taken = 0

    @property
    def sent(self) -> int:
        """How many items were sent."""
        return self._taken + len(self._ahead)

    @property
    def has_room(self) -> bool:
        """Whether one more item may be sent."""
        return len(self._ahead) < self._items and self._ahead_bytes < self._size

    def send(self, size: int) -> int:
        """Counts an item that is sent now and returns its number."""
        number = self.sent
        self._ahead.append(size)
        self._ahead_bytes += size
        return number

    def unsend(self) -> None:
        """Takes back the last item: it could not be posted, and nobody has taken it."""
        self._ahead_bytes -= self._ahead.pop()

    def more(self, taken: int) -> None:
        """Hears how many items were taken so far.

        Raises:
            DecodeError: So many were never sent.
        """
        if taken > self.sent:
            raise DecodeError(f"{taken} items of a stream were taken, but {self.sent} were sent")
        while self._taken < taken:
            self._ahead_bytes -= self._ahead.popleft()
            self._taken += 1


@final
class Receiver(Generic[T]):
    """The consumer's end: puts items in order and says when to ask for more.

    Args:
        items: As at the producer.
        size: As at the producer.
    """

    def __init__(self, items: int = WINDOW_ITEMS, size: int = WINDOW_BYTES) -> None:
        self._items = items
        self._size = size
        self._here: dict[int, tuple[T, int]] = {}
        self._taken = 0
        self._said = 0  # of those taken, how many the producer has heard of
        self._unsaid_bytes = 0
        self._end: int | None = None

    @property
    def taken(self) -> int:
        """How many items were taken."""
        return self._taken

    @property
    def has_next(self) -> bool:
        """Whether the next item is here."""
        return self._taken in self._here

    @property
    def is_whole(self) -> bool:
        """Whether it has ended and every item is here, or was taken."""
        return self._end is not None and self._taken + len(self._here) == self._end

    @property
    def is_over(self) -> bool:
        """Whether all items were taken and no other will come."""
        return self._end is not None and self._taken >= self._end

    def arrive(self, number: int, size: int, item: T) -> None:
        """An item came.

        Raises:
            DecodeError: It came before, or was sent without room for it, or after the end.
        """
        known = number < self._taken or number in self._here
        beyond = number >= self._said + self._items
        if known or beyond or (self._end is not None and number >= self._end):
            raise DecodeError(f"item {number} of a stream is none that was to come")
        self._here[number] = (item, size)

    def end(self, sent: int) -> None:
        """The producer has ended, after so many items.

        Raises:
            DecodeError: More were taken.
        """
        if sent < self._taken or any(number >= sent for number in self._here):
            raise DecodeError(f"a stream of {sent} items had others")
        self._end = sent

    def break_off(self) -> list[T]:
        """Nothing further will come; returns the items that can no longer be taken in order."""
        end = self._taken
        while end in self._here:
            end += 1
        self._end = end
        return [self._here.pop(number)[0] for number in sorted(self._here) if number >= end]

    def close(self) -> list[T]:
        """Nothing further will be taken; returns the items that are here."""
        left = [item for item, _ in self._here.values()]
        self._here.clear()
        self._end = self._taken
        return left

    def take(self) -> T | None:
        """Takes the next item; None where it is not here."""
        item, size = self._here.pop(self._taken, (None, 0))
        if item is not None:
            self._taken += 1
            self._unsaid_bytes += size
        return item

    def ask_for_more(self) -> int | None:
        """Returns what the producer is to be told was taken; None while it need not hear."""
        unsaid = self._taken - self._said
        if self._end is not None or not unsaid:
            return None
        if 2 * unsaid < self._items and 2 * self._unsaid_bytes < self._size:
            return None
        self._said, self._unsaid_bytes = self._taken, 0
        return self._taken
