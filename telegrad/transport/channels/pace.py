"""The chunks of a stream's lanes: smaller where the link is slow, and stalled if none is taken.

A receiver reports its progress in heartbeats, as a number of chunks. At 512 kbit/s and with chunks
of 1 MiB that number stands still for half a minute, though bytes come all the time; and bytes that
were handed to gRPC or the system cannot be taken back. So a chunk has the size of the data that
arrives in 1/32 s, measured from beat to beat while more is owed than has arrived: from 32 MB/s on
it has 1 MiB, below 0.5 MB/s 16 KiB. Before the first such measurement it is small, as the system
takes some MiB at once however slow the link is.

A sender that is behind and makes no progress must not wait for ever. While chunks are owed, the
time since that number last grew is added up. The time between two ticks counts only up to a bound,
so that a worker that slept itself first reads the data that has arrived. Pure: the time is always
an argument.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import final

from telegrad.critical import critical
from telegrad.wire import BLOCK_BYTES, PIECE_BYTES

CHUNKS_PER_SECOND = 32
LEAST_SECONDS = 0.25  # of a measurement; beats may come in pairs
MOST_GROWTH, MOST_SHRINKAGE = 2, 4  # from one beat to the next
FIRST_BYTES = 64 * 2**10
FIRST_SHARE = 64  # of the bytes that left; 64 MiB are 250 chunks the first time, then 64
TICKS_PER_PATIENCE = 5  # a late tick counts for no more than this part of the bound


@final
class Pace:
    """The speed at which the peer takes the chunks of one stream, as the sender knows it.

    Args:
        now: The time.
        patience: Seconds without progress after which the lanes are stalled.

    Attributes:
        stride: The most bytes that the next chunk should have; a multiple of 16 KiB.
        taken: The number of chunks that the receiver has said it took.
    """

    def __init__(self, now: float, patience: float) -> None:
        self.stride = FIRST_BYTES
        self.taken = 0
        self._patience = patience
        self._last_tick = now
        self._idle = 0.0  # seconds without progress
        self._lock = Lock()  # guards all below
        self._measured = False
        self._sent = 0
        self._owed: deque[int] = deque()  # sizes of chunks that were sent and not taken
        self._since = now
        self._bytes = 0  # taken since then
        self._busy = False  # True if something was owed then

    def sent(self, size: int) -> None:
        """Records that a chunk is sent; from any thread."""
        with critical.section, self._lock:
            self._owed.append(size)
            if not self._measured:
                self._sent += size
                self._set(max(FIRST_BYTES, self._sent // FIRST_SHARE))

    def heard(self, taken: int, now: float) -> None:
        """Takes the number of chunks that the receiver took; from any thread."""
        with critical.section, self._lock:
            for _ in range(min(taken - self.taken, len(self._owed))):
                self._bytes += self._owed.popleft()
            if taken > self.taken:
                self.taken, self._idle = taken, 0.0
            passed = now - self._since
            if passed < LEAST_SECONDS:
                return
            owes = bool(self._owed)
            if self._busy and owes:  # all the time, so that the link was the bound
                self._measured = True
                measured = int(self._bytes / passed) // CHUNKS_PER_SECOND
                self._set(max(measured, self.stride // MOST_SHRINKAGE))
            elif self._bytes >= self.stride:  # the link is at least so fast, and may be much faster
                self._set(self.stride * MOST_GROWTH)
            self._since, self._bytes, self._busy = now, 0, owes

    def is_stalled(self, now: float, *, waiting: bool) -> bool:
        """Returns True if chunks are owed and none has been taken for too long.

        Args:
            now: The time.
            waiting: True if there are more to send.
        """
        with critical.section, self._lock:
            passed = min(max(0.0, now - self._last_tick), self._patience / TICKS_PER_PATIENCE)
            self._last_tick = now
            self._idle = self._idle + passed if waiting or self._owed else 0.0
            return self._idle > self._patience

    def _set(self, stride: int) -> None:
        self.stride = min(max(stride // BLOCK_BYTES, 1) * BLOCK_BYTES, PIECE_BYTES)
