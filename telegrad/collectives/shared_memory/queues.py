"""Queues of short messages between the ranks of one host, one for each sender and receiver.

    board of the sender │ ... │ queue for rank 0 │ queue for rank 1 │ ...
    queue               │ written │ taken ║ ring of bytes: length, message, length, message, ...

A receiver that has looked for long enough sleeps until a message comes, as in a meeting:

    writes `listens`; takes once more; sleeps       sender: writes `written`; reads `listens`

Whichever order these have, the receiver sees the message or the sender wakes it. A receiver that
sleeps, or whose queue is full, gets an ordinary message instead. Both kinds carry the number of
their operation, which gives them one order.

Any rank of the host can write to this memory. So each end keeps its own count itself, and takes
that of the other only within the bounds that a ring allows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, final

from telegrad.collectives.link import Steps
from telegrad.collectives.messages import ANY
from telegrad.collectives.shared_memory.boards import LISTENS, Board
from telegrad.critical import critical
from telegrad.errors import DecodeError
from telegrad.rpc.seams import Spin

R = TypeVar("R")

# A longer message takes so long to copy that the way there matters less.
SHORT_BYTES = 64 * 2**10
RING_BYTES = 2 * SHORT_BYTES
# Places of words. The receiver alone writes `taken`; each line of the processor's caches has eight.
WRITTEN, TAKEN = 0, 8
HEAD_BYTES = 128
LENGTH_BYTES = 8
QUEUE_BYTES = HEAD_BYTES + RING_BYTES


@final
class Queue:
    """The messages of one rank for another, in a ring; for one thread at a time at each end.

    Args:
        memory: `QUEUE_BYTES` bytes, all zero at first.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory[:HEAD_BYTES].cast("Q")
        self._ring = memory[HEAD_BYTES:]
        self._written = self._taken = 0

    def fits(self, size: int) -> bool:
        """Returns True if the sender can put a message of so many bytes."""
        untaken = self._written - self._words[TAKEN]
        return 0 <= untaken <= RING_BYTES - LENGTH_BYTES - size

    def put(self, message: bytes) -> None:
        """Adds a message, which must fit."""
        start = self._written
        end = start + LENGTH_BYTES
        self._write(start, len(message).to_bytes(LENGTH_BYTES, "little"))
        self._write(end, message)
        self._words[WRITTEN] = self._written = end + len(message)

    @property
    def empty(self) -> bool:
        """True if the receiver can take no message."""
        return self._words[WRITTEN] == self._taken

    def take(self) -> bytearray:
        """Removes the next message of a queue that has one; raises DecodeError for other bytes."""
        start = self._taken + LENGTH_BYTES
        unread = self._words[WRITTEN] - self._taken
        length = int.from_bytes(self._read(self._taken, LENGTH_BYTES), "little")
        if not LENGTH_BYTES <= unread <= RING_BYTES or length > unread - LENGTH_BYTES:
            raise DecodeError(
                f"a message of {length} bytes, of {unread} in all, in a queue of {RING_BYTES}"
            )
        message = self._read(start, length)
        self._words[TAKEN] = self._taken = start + length
        return message

    def _write(self, start: int, data: bytes) -> None:
        place = start % RING_BYTES
        first = min(RING_BYTES - place, len(data))
        self._ring[place : place + first] = data[:first]
        self._ring[: len(data) - first] = data[first:]

    def _read(self, start: int, length: int) -> bytearray:
        place = start % RING_BYTES
        data = bytearray(self._ring[place : place + length])
        data += self._ring[: length - len(data)]
        return data


@final
class Queues:
    """The queues from and to one rank; there are none before `open`.

    Args:
        spin: Seconds for which a receiver looks before it sleeps.
    """

    def __init__(self, spin: float) -> None:
        self._spin = Spin(spin)
        self._looking = threading.Lock()  # held by the thread that looks
        self._lock = threading.Lock()  # guards all below; to take it orders writes and reads
        self._to: dict[int, tuple[Queue, memoryview]] = {}
        self._from: dict[int, Queue] = {}
        self._own: memoryview | None = None
        self._listeners = 0

    def open(self, place: int, ranks: Sequence[int], boards: Sequence[Board]) -> None:
        """Opens the queues in the boards of some ranks.

        Args:
            place: The place of this rank among them.
            ranks: Their ranks in the group.
            boards: Their boards, in the same order.
        """
        own, others = boards[place], [(i, r) for i, r in enumerate(ranks) if i != place]
        to = {r: (Queue(own.queue(i, QUEUE_BYTES)), boards[i].words) for i, r in others}
        sources = {r: Queue(boards[i].queue(place, QUEUE_BYTES)) for i, r in others}
        with critical.section, self._lock:
            self._to, self._from = to, sources  # other threads may look at the old ones
            self._own = own.words
            self._own[LISTENS] = self._listeners

    # For a sender.

    def fits(self, to: int, size: int) -> bool:
        """Returns True if a message of so many bytes can be put, for a rank that does not sleep."""
        if to not in self._to:
            return False
        queue, words = self._to[to]
        return not words[LISTENS] and queue.fits(size)

    def put(self, to: int, message: bytes) -> bool:
        """Puts a message, which must fit, for a rank; returns True if that rank sleeps by now."""
        queue, words = self._to[to]
        queue.put(message)
        with critical.section, self._lock:
            return words[LISTENS] > 0

    # For a receiver.

    def take(self) -> list[tuple[int, bytearray | DecodeError]]:
        """Removes all messages for this rank; returns them with their senders.

        The last one of a queue whose bytes are no messages is an error. Such a queue is closed.
        """
        found: list[tuple[int, bytearray | DecodeError]] = []
        with critical.section, self._lock:
            for r, queue in [*self._from.items()]:
                try:
                    while not queue.empty:
                        found.append((r, queue.take()))
                except DecodeError as error:
                    self._from = {k: each for k, each in self._from.items() if k != r}
                    found.append((r, error))
        return found

    async def wait(
        self,
        source: int,
        there: Callable[[], bool],
        collect: Callable[[], None],
        until: Callable[[], Steps[R]],
        *,
        short: bool,
    ) -> R:
        """Waits for a message that comes by a queue or in another way.

        Args:
            source: Its sender; ANY for any rank.
            there: Returns True if it has come.
            collect: Takes all messages that are in the queues and hands them to their operations.
            until: Waits for it asleep, until a message in another way makes it look again.
            short: True if it may be short. Of others the thread hears sooner asleep, as it then
                reads the sockets.
        """
        began = time.monotonic()
        looks = short and (source in self._from or (source == ANY and bool(self._from)))
        if looks and self._look(there):
            collect()
            if there():
                return await until()
        self._listen(1)
        try:
            collect()
            return await until()
        finally:
            self._listen(-1)
            if looks:
                self._spin.learn(time.monotonic() - began)

    def _look(self, there: Callable[[], bool]) -> bool:
        """Looks for a short while until there is a message, unless another thread does."""

        def poll(_: int) -> list[bool]:
            for queue in self._from.values():
                if not queue.empty:
                    return [True]
            return [True] if there() else []

        if not (self._spin.window and self._looking.acquire(blocking=False)):
            return bool(poll(0))
        try:
            return bool(self._spin.poll(poll, 0))
        finally:
            self._looking.release()

    def _listen(self, change: int) -> None:
        with critical.section, self._lock:
            self._listeners += change
            if self._own is not None:
                self._own[LISTENS] = self._listeners
