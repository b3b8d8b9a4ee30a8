"""Arrays that were made in shared memory (`arrays.shared_empty`), as a peer gets them: not copied.

Such memory is the program's own: it is lent as often as its arrays are sent, to any number of peers, and
never used for anything else. A peer maps it once on a stream, until it is told that it is gone here.
"""

from __future__ import annotations

import os
import queue
import weakref
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from telegrad.arrays import SharedMemory
from telegrad.transport.shm.ledger import Account
from telegrad.transport.shm.loans import FIRST_HANDLE
from telegrad.wire import Lent

__all__ = ["Handles"]

MOST_HANDLES = 64  # of one stream; each takes a descriptor of the peer's


@final
class _Watch(weakref.ref[SharedMemory]):
    """Goes into a queue when the memory is gone."""

    __slots__ = ("key",)
    key: int

    def __new__(cls, memory: SharedMemory, gone: queue.SimpleQueue[_Watch]) -> Self:
        self = super().__new__(cls, memory, gone.put)
        self.key = id(memory)
        return self

    def __init__(self, memory: SharedMemory, gone: object) -> None:
        """Does nothing more."""


@final
@dataclass(slots=True)
class _Handle:
    number: int
    watch: _Watch
    loans: int = 0
    gone: bool = False


@final
class Handles:
    """The memory of arrays that the peer of one stream knows; under the pool's lock.

    Attributes:
        known: By the id of the memory.

    Args:
        account: Where loans are numbered, and what is dropped is told.
    """

    def __init__(self, account: Account[SharedMemory]) -> None:
        self._account = account
        self.known: dict[int, _Handle] = {}
        self._loans: dict[int, _Handle] = {}
        self._last = FIRST_HANDLE
        self._gone: queue.SimpleQueue[_Watch] = queue.SimpleQueue()

    @property
    def due(self) -> bool:
        """Whether there is something to drain."""
        return not self._gone.empty()

    def lend(
        self, memory: SharedMemory, buffer: memoryview, new: list[tuple[int, int, int]]
    ) -> Lent | None:
        """Lends a stretch of memory.

        Args:
            memory: Where it lies.
            buffer: The stretch.
            new: Gets number, size and a descriptor of what the peer does not know.

        Returns:
            Where it lies; None if the peer knows too many.
        """
        self.drain()
        if not self._account.open:
            return None
        handle = self.known.get(id(memory))
        if handle is None:
            if len(self.known) >= MOST_HANDLES:
                return None
            try:
                descriptor = os.dup(memory.descriptor)
            except OSError:  # too many are open
                return None
            self._last += 1
            handle = self.known[id(memory)] = _Handle(self._last, _Watch(memory, self._gone))
            new.append((handle.number, len(memory), descriptor))
        self._account.loan += 1
        self._loans[self._account.loan] = handle
        handle.loans += 1
        offset = _address(buffer) - _address(memoryview(memory))
        return Lent(self._account.loan, handle.number, offset, buffer.nbytes)

    def returned(self, loan: int) -> bool:
        """Hears that the peer has given a loan back; returns whether it had it."""
        handle = self._loans.pop(loan, None)
        if handle is None:
            return False
        handle.loans -= 1
        self._drop_unused(handle)
        return True

    def drain(self) -> None:
        """Tells the peer of memory that is gone here, once it has given all of it back."""
        while not self._gone.empty():
            watch = self._gone.get()
            handle = self.known.get(watch.key)
            if handle is not None and handle.watch is watch:
                del self.known[watch.key]
                handle.gone = True
                self._drop_unused(handle)

    def _drop_unused(self, handle: _Handle) -> None:
        if handle.gone and not handle.loans:
            self._account.dropped.append(handle.number)


def _address(buffer: memoryview) -> int:
    there: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return there
