"""Memory of big messages that is used again: its pages are there.

The first touch of fresh memory costs the kernel more than all the rest that is done with a byte: 18 ms
for 64 MiB that arrive by a socket, beside 14 for receiving them. So what a message lay in, the copy
that is sent or the array that came, is kept for a while when nothing refers to it any more.
"""

from __future__ import annotations

import contextlib
import mmap
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, final

import numpy as np

from telegrad.arrays import SharedMemory
from telegrad.transport.shm.answers import Answering
from telegrad.transport.shm.loans import Watch
from telegrad.types import Array
from telegrad.wire import Envelope, Memory

__all__ = ["SpareMemory"]

SMALLEST = 2**18  # below, malloc has warm pages itself
GRID = 2**16  # sizes are rounded up to these, so that nearly equal ones are equal
MOST_TOO_BIG = 1.25  # times as much as is asked for: what is left over is not used meanwhile
IDLE_BYTES = 256 * 2**20  # an echo of 64 MiB needs 128 at either end
IDLE_SECONDS = 10.0
HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux; as NumPy asks for


@final
class SpareMemory:
    """What the big messages of one worker lie in, where they go through no shared memory.

    From any thread. What `take` returns is given back when the last view of it is freed, which may
    be in any thread and at any time: all that is done then is to note it.

    Args:
        clock: In seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._freed: queue.SimpleQueue[Watch] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the next three
        self._used: dict[int, Watch] = {}  # by the id of the exporter
        self._spare: deque[tuple[float, mmap.mmap]] = deque()  # the longest idle first
        self._idle = 0

    @property
    def idle_bytes(self) -> int:
        """How much is kept for the next use."""
        with self._lock:
            self._drain()
            return self._idle

    def take(self, size: int) -> memoryview | None:
        """Returns so many bytes that nothing else refers to; None if that is not worth while.

        Raises:
            MemoryError: There is none.
        """
        if size < SMALLEST:
            return None
        with self._lock:
            self._drain()
            below = self._find(size)
        if below is None:
            below = _fresh(-(-size // GRID) * GRID)
        with self._lock:
            return self._export(below, size)

    def tick(self) -> None:
        """Lets go of what was idle for long."""
        with self._lock:
            self._drain()
            self._trim(IDLE_BYTES, self._clock() - IDLE_SECONDS)

    # What shares nothing with anybody; see `wire.Memory`.

    def lends(self, memory: SharedMemory) -> bool:
        """Lends nothing."""
        del memory
        return False

    def keep(self, array: Array) -> None:
        """Keeps nothing as it is."""
        del array

    def stage(self, envelope: Envelope) -> Envelope:
        """Returns what it is given: nothing is shared."""
        return envelope

    def answering(self) -> Memory:
        """Returns memory for a reply whose value may lie in what came: that need not be copied."""
        return Answering(self, self)

    def settle(self, envelope: Envelope) -> None:
        """Has kept nothing."""
        del envelope

    def shadow(self, array: object) -> None:
        """Shares no GPU."""
        del array

    # What came, as replies may go; see `slab_answers.Whole`.

    def whole(self, array: Array) -> Array | None:
        """Returns the exporter of what an array takes all bytes of; None where there is none."""
        below: object = array
        while isinstance(below, (np.ndarray, memoryview)):
            watch = self._used.get(id(below))
            if watch is not None and (exporter := watch()) is below:
                return exporter if exporter.nbytes == array.nbytes else None
            below = below.base if isinstance(below, np.ndarray) else below.obj
        return None

    def take_over(self, holders: list[Array]) -> memoryview | None:
        """Lets go of an exporter; has its memory, if nothing else refers to that by then."""
        with self._lock:
            watch, size = self._used[id(holders[0])], holders[0].nbytes
            watch.given = True  # so that it is not spare, if it ends here
            holders.clear()
            if (exporter := watch()) is not None:
                watch.given = False
                holders.append(exporter)
                return None
            return self._export(watch.what, size)

    def _export(self, below: mmap.mmap, size: int) -> memoryview:
        """Returns a view whose end is noticed. Holds the lock."""
        # Not of an array, or NumPy's views of it would refer to that in its place.
        exporter = np.frombuffer(below, np.uint8, size)
        watch = Watch(exporter, self._freed, below)
        self._used[watch.key] = watch
        return exporter.data

    def _find(self, size: int) -> mmap.mmap | None:
        """Returns what was used last of what fits. Holds the lock."""
        for k in range(len(self._spare) - 1, -1, -1):
            below = self._spare[k][1]
            if size <= len(below) <= max(MOST_TOO_BIG * size, size + GRID):
                del self._spare[k]
                self._idle -= len(below)
                return below
        return None

    def _drain(self) -> None:
        """Takes back what was freed. Holds the lock."""
        while not self._freed.empty():
            watch = self._freed.get()
            if self._used.get(watch.key) is watch:
                del self._used[watch.key]
            if not watch.given:
                self._spare.append((self._clock(), watch.what))
                self._idle += len(watch.what)
        self._trim(IDLE_BYTES)

    def _trim(self, most: int, before: float = -1.0) -> None:
        while self._spare and (self._idle > most or self._spare[0][0] < before):
            _, below = self._spare.popleft()
            self._idle -= len(below)


def _fresh(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes: {error}") from error
    if HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(HUGE_PAGES)
    return memory
