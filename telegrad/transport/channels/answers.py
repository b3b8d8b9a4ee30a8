"""A reply whose value nobody else has: its bytes are not copied.

The value lies in the memory of the request, when a function returns one of its arguments; or in
memory of its own, when it returns a new array. Only when the value itself is gone is it known if
anything else refers to that memory:

    describe ──▶ kept, not copied ── the value ends ──▶ settle ──▶ taken over, if nothing else
                                                           │       has it
                                                           └────▶ copied, if something has
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from telegrad.wire import Buffer, Envelope, Memory, copy_of

if TYPE_CHECKING:
    from telegrad.arrays import SharedMemory

__all__ = ["OWN_MEMORY", "Answering", "Whole"]


class Whole(Protocol):
    """Memory that messages came in."""

    def whole(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Returns the object that exports the memory of one part, if an array takes all of it."""

    def take_over(self, holders: list[np.ndarray[Any, Any]]) -> memoryview | None:
        """Lets go of an exporter; takes its bytes over, if nothing else refers to it by then.

        Args:
            holders: The array that `whole` returned, and nothing else; removed if it is taken over.

        Returns:
            The bytes, to which nobody here writes any more; None where somebody may.
        """


def octets_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the bytes of a contiguous array, not copied."""
    return array.reshape(-1, order="A").view(np.uint8)


@final
class Answering(Memory):
    """Memory for one reply; for one thread.

    Args:
        memory: The memory for the reply.
        loans: The parts that came from the receiver of the reply.
    """

    __slots__ = ("_kept", "_loans", "_memory")

    def __init__(self, memory: Memory, loans: Whole) -> None:
        self._memory = memory
        self._loans = loans
        self._kept: dict[int, np.ndarray[Any, Any]] = {}  # exporters, by the ids of their bytes

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
        """Returns the bytes of an array that takes all of a part that came; keeps each once."""
        exporter = self._loans.whole(array)
        if exporter is None or any(exporter is each for each in self._kept.values()):
            return None
        octets = octets_of(exporter)
        self._kept[id(octets)] = exporter
        return octets.data

    def stage(self, envelope: Envelope) -> Envelope:
        """Puts a big document into that memory; the buffers are there already, or are kept."""
        texts = self._memory.stage(replace(envelope, buffers=()))
        return replace(envelope, number=0, staged=texts.staged)

    def settle(self, envelope: Envelope) -> None:
        """Replaces each part that was kept by the bytes that go back, or by a copy."""
        if not self._kept:
            return
        envelope.buffers = buffers = list(envelope.buffers)
        for place in range(len(buffers)):  # `enumerate` would keep the last item that it returned
            buffer = buffers[place]
            key = id(buffer.obj) if type(buffer) is memoryview else 0
            if key in self._kept:
                del buffer
                buffers[place] = b""
                holders = [self._kept.pop(key)]
                given = self._loans.take_over(holders)
                buffers[place] = self._copy(holders[0]) if given is None else given

    def _copy(self, exporter: np.ndarray[Any, Any]) -> Buffer:
        room = self._memory.take(exporter.nbytes)
        if room is None:
            return copy_of(octets_of(exporter).data)
        np.copyto(np.frombuffer(room, np.uint8), octets_of(exporter))
        return room


@final
class _OwnMemory(Memory):
    """The memory of this process alone, for what lanes carry: results that nobody has any more."""

    __slots__ = ()

    def answering(self) -> Memory:
        """Returns memory for one reply, which keeps results until they are settled."""
        return Answering(self, self)

    def whole(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Returns the array that owns the memory of another one, if that takes all of it."""
        owner = array if array.base is None else array.base
        if type(owner) is not np.ndarray or not (owner.flags.owndata and owner.flags.forc):
            return None
        return owner if owner.nbytes == array.nbytes else None

    def take_over(self, holders: list[np.ndarray[Any, Any]]) -> memoryview | None:
        """Takes the bytes of an array over, if nothing else refers to it; see `Whole`."""
        if _references(holders) > OWN_REFERENCES or weakref.getweakrefcount(holders[0]):
            return None
        return octets_of(holders.pop()).data


def _references(holders: list[np.ndarray[Any, Any]]) -> int:
    """Returns the number of references to the only item of a list."""
    return sys.getrefcount(holders[0])


OWN_MEMORY: Final = _OwnMemory()
# Of an array in a list that nobody else has. Python 3.14 counts fewer than the versions before it.
OWN_REFERENCES: Final = _references([np.empty(0)])
