"""Arrays that programs made in shared memory: all ranks map them, and nothing is copied.

A rank gives each such memory one of its slots, and tells the others the slot and the offset when
they meet. From then on they have it mapped, until they meet after that memory is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple, Self, final

import numpy as np

from telegrad.arrays import SharedMemory, memory_below, shared_below
from telegrad.errors import DecodeError
from telegrad.types import Array
from telegrad.wire import Buffer

LEAST_BYTES = 2**20  # a smaller array is copied sooner than its place is told
SLOTS = 15


class ResidentPlace(NamedTuple):
    """The place of an array, as one number of 64 bits for the other ranks.

    Attributes:
        slot: The slot of its memory, from 1; 0 if that is not shared.
        new: True if the other ranks do not have the memory yet.
        living: A bit for each slot whose memory is still there.
        offset: The bytes before the array in that memory.
    """

    slot: int = 0
    new: bool = False
    living: int = 0
    offset: int = 0

    @property
    def note(self) -> int:
        """The place as a number."""
        return self.offset << 21 | self.living << 5 | self.new << 4 | self.slot

    @classmethod
    def of(cls, note: int) -> Self:
        """Returns the place that a number means.

        >>> ResidentPlace.of(ResidentPlace(3, True, 0b1010, 4096).note)
        ResidentPlace(slot=3, new=True, living=10, offset=4096)
        """
        return cls(note & 0xF, bool(note >> 4 & 1), note >> 5 & 0xFFFF, note >> 21)


@final
class Residents:
    """The memory that the ranks of a group have mapped; for one operation at a time."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._own: dict[int, weakref.ref[SharedMemory]] = {}  # by slot
        self._refused: weakref.WeakSet[SharedMemory] = weakref.WeakSet()
        self._theirs: dict[tuple[int, int], memoryview] = {}  # by rank and slot

    def place(self, flat: Array) -> ResidentPlace:
        """Returns the place of an array of this rank; new memory gets a slot, if there is one."""
        self._own = {slot: known for slot, known in self._own.items() if known() is not None}
        living = sum(1 << slot for slot in self._own)
        memory = shared_below(flat)
        if memory is None or memory in self._refused:
            return ResidentPlace(living=living)
        offset = _address(flat) - _address(np.frombuffer(memory, np.uint8))
        for slot, known in self._own.items():
            if known() is memory:
                return ResidentPlace(slot, False, living, offset)
        free = [slot for slot in range(1, SLOTS + 1) if slot not in self._own]
        return (
            ResidentPlace(free[0], True, living, offset) if free else ResidentPlace(living=living)
        )

    def know(self, place: ResidentPlace, flat: Array) -> None:
        """Records that all ranks have the memory of an array of this rank at its place."""
        memory = shared_below(flat)
        if memory is not None:
            self._own[place.slot] = weakref.ref(memory)

    def refuse(self, flat: Array) -> None:
        """Records that not all ranks share memory; that of this array, if it is new, is copied."""
        memory = shared_below(flat)
        if memory is not None and self.place(flat).new:
            self._refused.add(memory)

    def memory_of(self, flat: Array) -> Buffer:
        """Returns all of the memory that an array of this rank lies in."""
        memory = shared_below(flat)
        assert memory is not None
        return np.frombuffer(memory, np.uint8).data

    def drop_gone(self, places: Sequence[ResidentPlace]) -> None:
        """Lets go of the memory that is gone at the other ranks."""
        for r, slot in [*self._theirs]:
            if not places[r].living >> slot & 1:
                del self._theirs[r, slot]

    def take(self, rank: int, place: ResidentPlace, data: Buffer) -> None:
        """Takes memory of another rank; if it came as a copy, it is of no use."""
        view = memoryview(data)
        self._theirs.pop((rank, place.slot), None)
        if memory_below(view) is not None:
            self._theirs[rank, place.slot] = view

    def has_all(self, places: Sequence[ResidentPlace]) -> bool:
        """Returns True if this rank has the memory of all others at their places."""
        return all(
            r == self._rank or (r, place.slot) in self._theirs for r, place in enumerate(places)
        )

    def memories(self, places: Sequence[ResidentPlace], flat: Array) -> list[Array]:
        """Returns the bytes of all ranks from their arrays on; of this rank, those of `flat`.

        Raises:
            DecodeError: A rank shows memory that this rank does not have.
        """
        found: list[Array] = []
        for r, place in enumerate(places):
            memory = self._theirs.get((r, place.slot))
            if r == self._rank:
                found.append(flat.view(np.uint8))
            elif memory is None:
                raise DecodeError(f"rank {r} of the group shows memory that it has not handed out")
            else:
                found.append(np.frombuffer(memory, np.uint8)[place.offset :])
        return found


def stretch(memory: Array, start: int, size: int) -> Array:
    """Returns some bytes of another rank's memory; raises DecodeError if there are fewer."""
    found = memory[start : start + size]
    if found.size < size:
        raise DecodeError(f"{size} bytes at {start} of shared memory that has {memory.size}")
    return found


def _address(array: Array) -> int:
    there: int = array.__array_interface__["data"][0]
    return there
