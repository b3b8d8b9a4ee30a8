"""Flow control and order of one stream's items: two pure state machines.

    producer (Sender)                               consumer (Receiver)
    next value of the generator
      room? no ─▶ the generator rests
      yes: item 0, 1, 2, ... with its size ────────▶ kept until all before it were taken
                                                     taken, in order
      room again  ◀────────── more(taken so far) ─── once half of the window was taken
    the generator ended: end(how many) ────────────▶ over once that many were taken

Guarantees, under any order of messages:

- T1: the consumer takes every item once, in the order in which the generator yielded them.
- T2: the items sent and not known to be taken are at most WINDOW_ITEMS, and their bytes at most
  WINDOW_BYTES plus one item.
- T3: no side waits for ever: when the producer has no room, it has sent enough items for the
  consumer to say `more` once it has taken them.
- T4: an old `more` changes nothing, because it carries a total.

Neither class is thread-safe; their user holds a lock around each event.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar, final

from telegrad.errors import DecodeError

T = TypeVar("T")

# Small items a second over gRPC between two processes, with 1, 4, 16, 32 and 256 ahead: 350, 2,100,
# 8,700, 10,900 and 14,100 (on a busy machine: the proportions count). When a consumer stops
# reading, up to this many items were made in vain.
WINDOW_ITEMS = 32
# Memory at the consumer for each stream: several items that are large enough for bulk lanes.
WINDOW_BYTES = 8 * 2**20


@final
class Sender:
    """The producer's end: limits how far the producer may run ahead.

    Args:
        items: The number of items that may be sent and not yet taken.
        size: The bytes of such items after which no further item may be sent.
    """

    def __init__(self, items: int = WINDOW_ITEMS, size: int = WINDOW_BYTES) -> None:
        self._items = items
        self._size = size
        self._ahead: deque[int] = deque()  # sizes of the items that are sent and not taken
        self._ahead_bytes = 0
        self._taken = 0

    @property
    def sent(self) -> int:
        """The number of items that were sent."""
        return self._taken + len(self._ahead)

    @property
    def has_room(self) -> bool:
        """True if one more item may be sent."""
        return len(self._ahead) < self._items and self._ahead_bytes < self._size

    def send(self, size: int) -> int:
        """Counts an item that is sent now and returns its number."""
        number = self.sent
        self._ahead.append(size)
        self._ahead_bytes += size
        return number

    def unsend(self) -> None:
        """Takes back the last item, which could not be posted; nobody has taken it."""
        self._ahead_bytes -= self._ahead.pop()

    def more(self, taken: int) -> None:
        """Takes the consumer's message that `taken` items were taken so far.

        Raises:
            DecodeError: The number is higher than that of the items sent.
        """
        if taken > self.sent:
            raise DecodeError(f"{taken} items of a stream were taken, but {self.sent} were sent")
        while self._taken < taken:
            self._ahead_bytes -= self._ahead.popleft()
            self._taken += 1


@final
class StreamReceiver(Generic[T]):
    """The consumer's end: puts items in order and decides when to ask for more.

    Args:
        items: The producer's limit of items.
        size: The producer's limit of bytes.

    Attributes:
        taken: The number of items that were taken.
        failure: The error that is raised once all items were taken; None for none.
        is_closed: True if the consumer gave it up.
    """

    def __init__(self, items: int = WINDOW_ITEMS, size: int = WINDOW_BYTES) -> None:
        self._items = items
        self._size = size
        self._here: dict[int, tuple[T, int]] = {}
        self.taken = 0
        self._said = 0  # the number of taken items that the producer was told
        self._unsaid_bytes = 0
        self._end: int | None = None
        self.failure: BaseException | None = None
        self.is_closed = False

    @property
    def has_next(self) -> bool:
        """True if the next item is here."""
        return self.taken in self._here

    @property
    def is_whole(self) -> bool:
        """True if it has ended, or was ended early, and no further item is wanted."""
        return self._end is not None and self.taken + len(self._here) == self._end

    @property
    def is_over(self) -> bool:
        """True if all items were taken and no further one will come."""
        return self._end is not None and self.taken >= self._end

    def arrive(self, number: int, size: int, item: T) -> None:
        """Takes an item that arrived.

        Raises:
            DecodeError: The item came before, exceeds the window, or lies behind the end.
        """
        known = number < self.taken or number in self._here
        beyond = number >= self._said + self._items
        if known or beyond or (self._end is not None and number >= self._end):
            raise DecodeError(f"item {number} of a stream was not expected")
        self._here[number] = (item, size)

    def end(self, sent: int, failure: BaseException | None = None) -> None:
        """Records that the producer ended after `sent` items, perhaps with an error.

        Raises:
            DecodeError: Items with higher numbers arrived or were taken.
        """
        if sent < self.taken or any(number >= sent for number in self._here):
            raise DecodeError(f"a stream ended after {sent} items, but later ones were sent")
        self._end, self.failure = sent, failure

    def break_off(self, failure: BaseException | None = None) -> list[T]:
        """Ends the stream early; returns the items that can no longer be taken in order."""
        self.failure = failure
        end = self.taken
        while end in self._here:
            end += 1
        self._end = end
        return [self._here.pop(number)[0] for number in sorted(self._here) if number >= end]

    def close(self, failure: BaseException | None = None) -> list[T]:
        """Ends the reading early; returns the items that are here."""
        self.is_closed, self.failure = True, failure
        left = [item for item, _ in self._here.values()]
        self._here.clear()
        self._end = self.taken
        return left

    def take(self) -> T | None:
        """Takes the next item; returns None if it is not here."""
        item, size = self._here.pop(self.taken, (None, 0))
        if item is not None:
            self.taken += 1
            self._unsaid_bytes += size
        return item

    def ask_for_more(self) -> int | None:
        """Returns the number of taken items to tell the producer; None while it need not know."""
        unsaid = self.taken - self._said
        if self._end is not None or not unsaid:
            return None
        if 2 * unsaid < self._items and 2 * self._unsaid_bytes < self._size:
            return None
        self._said, self._unsaid_bytes = self.taken, 0
        return self.taken
