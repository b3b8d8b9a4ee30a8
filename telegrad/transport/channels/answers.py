"""A reply whose value lies in the memory of its request, and nobody else has: it is not copied.

Only when the value itself is gone is it known if anything else refers to that memory:

    describe ──▶ kept, not copied ── the value ends ──▶ settle ──▶ taken over, if nothing else
                                                           │       has it
                                                           └────▶ copied, if something has
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from telegrad.transport.channels.loans import Loans
from telegrad.wire import Buffer, Envelope, Memory, copy_of

if TYPE_CHECKING:
    from telegrad.arrays import SharedMemory


def octets_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the bytes of a contiguous array, not copied."""
    return array.reshape(-1, order="A").view(np.uint8)


@final
class Answering(Memory):
    """Memory for the replies to one peer; any thread.

    Args:
        memory: The memory for parts that are copied.
        loans: The parts that came from that peer.
    """

    __slots__ = ("_loans", "_memory")

    def __init__(self, memory: Memory, loans: Loans) -> None:
        self._memory = memory
        self._loans = loans

    def take(self, size: int) -> memoryview | None:
        """Returns memory for a buffer; see `SlabStream.take`."""
        return self._memory.take(size)

    def lends(self, memory: SharedMemory) -> bool:
        """Returns True if arrays in some memory travel as they are."""
        return self._memory.lends(memory)

    def shadow(self, array: Any) -> memoryview | None:
        """Copies an array of a GPU; see `SlabStream.shadow`."""
        return self._memory.shadow(array)

    def keep(self, array: np.ndarray[Any, Any]) -> Buffer | None:
        """Returns the bytes of an array that takes all of a part that came."""
        exporter = self._loans.whole(array)
        return None if exporter is None else octets_of(exporter).data

    def settle(self, envelope: Envelope) -> None:
        """Replaces each part that was kept by the bytes that go back, or by a copy."""
        envelope.buffers = buffers = list(envelope.buffers)
        for place in range(len(buffers)):  # `enumerate` would keep the last item that it returned
            holders = self._loans.holders(buffers[place])
            if holders:
                buffers[place] = b""
                given = self._loans.take_over(holders)
                buffers[place] = self._copy(holders[0]) if given is None else given

    def _copy(self, exporter: np.ndarray[Any, Any]) -> Buffer:
        room = self._memory.take(exporter.nbytes)
        if room is None:
            return copy_of(octets_of(exporter).data)
        np.copyto(np.frombuffer(room, np.uint8), octets_of(exporter))
        return room
