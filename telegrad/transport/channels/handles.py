"""Arrays that were made in shared memory (`arrays.shared_empty`): a peer gets them uncopied.

Such memory belongs to the program. It is lent as often as its arrays are sent, to any number of
peers, and is never used for anything else. A peer maps it once on a stream, until it is told that
the memory is gone here.
"""

from __future__ import annotations

import os
import queue
from dataclasses import dataclass
from typing import final

import numpy as np

from telegrad.arrays import SharedMemory
from telegrad.transport.channels.ledger import Account
from telegrad.transport.channels.loans import FIRST_HANDLE, Watch
from telegrad.wire import Lent

MOST_HANDLES = 64  # of one stream; each takes one descriptor of the peer


@final
@dataclass(slots=True)
class _Handle:
    number: int
    loans: int = 0
    gone: bool = False


@final
class Handles:
    """The memory of arrays that the peer of one stream knows; under the pool's lock.

    Args:
        account: Numbers the loans, and tells the peer of memory that is dropped.
        new: Gets the number, the size and a descriptor of memory that the peer does not know.
    """

    def __init__(self, account: Account[SharedMemory], new: list[tuple[int, int, int]]) -> None:
        self._account = account
        self._new = new
        self._known: dict[int, Watch] = {}  # of memory, by its id
        self._loans: dict[int, _Handle] = {}
        self._last = FIRST_HANDLE
        self.gone: queue.SimpleQueue[Watch] = queue.SimpleQueue()

    def lend(self, memory: SharedMemory, buffer: memoryview) -> Lent | None:
        """Lends a stretch of memory.

        Args:
            memory: The memory.
            buffer: The stretch.

        Returns:
            The place of the stretch; None if the peer knows too many handles.
        """
        self.drain()
        if not self._account.open:
            return None
        watch = self._known.get(id(memory))
        if watch is None:
            if len(self._known) >= MOST_HANDLES:
                return None
            try:
                descriptor = os.dup(memory.descriptor)
            except OSError:  # too many descriptors are open
                return None
            self._last += 1
            watch = self._known[id(memory)] = Watch(memory, self.gone, _Handle(self._last))
            self._new.append((self._last, len(memory), descriptor))
        handle: _Handle = watch.what
        self._account.loan += 1
        self._loans[self._account.loan] = handle
        handle.loans += 1
        offset = _place_of(buffer) - _place_of(memoryview(memory))
        return Lent(self._account.loan, handle.number, offset, buffer.nbytes)

    def returned(self, loan: int) -> bool:
        """Records that the peer has given a loan back; returns True if it had that loan."""
        handle = self._loans.pop(loan, None)
        if handle is None:
            return False
        handle.loans -= 1
        self._drop_unused(handle)
        return True

    def drain(self) -> None:
        """Tells the peer of memory that is gone here, once it has given all of it back."""
        while not self.gone.empty():
            watch = self.gone.get()
            if self._known.get(watch.key) is watch:
                del self._known[watch.key]
                watch.what.gone = True
                self._drop_unused(watch.what)

    def _drop_unused(self, handle: _Handle) -> None:
        if handle.gone and not handle.loans:
            self._account.dropped.append(handle.number)


def _place_of(buffer: memoryview) -> int:
    there: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return there
