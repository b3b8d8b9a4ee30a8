"""Buckets of parameters that are reduced together: a pure assignment, the same on every rank.

Backward usually reaches the last parameters first, so buckets are filled from the end at first:

    parameters   0   1   2   3   4   5          bucket 0: 5 4       reduced while backward
    bytes        4   4   2   6   3   3          bucket 1: 3 2       still computes bucket 1, ...
    limit 8    [0 1][2  3][ 4   5 ]             bucket 2: 1 0

After the first backward they are filled in the order in which its gradients were complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any, final

import numpy as np

from telegrad.types import Array, Shape


@dataclass(frozen=True, slots=True)
class Slot:
    """The shape and dtype of an array that goes into a bucket.

    Attributes:
        shape: The lengths of its axes.
        dtype: The dtype of its items.
        sparse: True if only some of its rows travel; its bucket then has no other member.
    """

    shape: Shape
    dtype: np.dtype[np.generic]
    sparse: bool = False

    @property
    def size(self) -> int:
        """The number of items."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Bucket:
    """Arrays of one dtype that travel in one buffer.

    Attributes:
        dtype: The dtype of the arrays.
        members: The indices of the arrays, in the order in which backward completes them.
        sparse: True if its only member is sparse.
    """

    dtype: np.dtype[np.generic]
    members: tuple[int, ...]
    sparse: bool = False


def assign_buckets(
    slots: Sequence[Slot], limit: int, order: Sequence[int] | None = None
) -> tuple[Bucket, ...]:
    """Distributes arrays over buckets of up to `limit` bytes; a larger array gets a bucket alone.

    In the given order, each array goes into the open bucket of its dtype. If it does not fit, that
    bucket is closed and the next one is opened. A sparse array gets a bucket alone.

    Args:
        slots: The arrays, in the order in which forward uses them.
        limit: The most bytes of a bucket.
        order: The index of each array once, in the order in which backward completes them; None
            for the last array first.

    Returns:
        The buckets in the order in which backward should complete them: each comes before those
        whose last member is completed later. Every index is in exactly one bucket.

    >>> slots = [Slot((n,), np.dtype(np.int8)) for n in (4, 4, 2, 6, 3, 3)]
    >>> [bucket.members for bucket in assign_buckets(slots, 8)]
    [(5, 4), (3, 2), (1, 0)]
    >>> [bucket.members for bucket in assign_buckets(slots, 8, [0, 5, 1, 4, 2, 3])]
    [(0, 5), (1, 4), (2, 3)]
    """
    reached = range(len(slots))[::-1] if order is None else order
    position = {i: place for place, i in enumerate(reached)}
    closed: list[Bucket] = []
    filling: dict[np.dtype[np.generic], list[int]] = {}
    room: dict[np.dtype[np.generic], int] = {}
    for i in reached:
        slot = slots[i]
        if slot.sparse:
            closed.append(Bucket(slot.dtype, (i,), sparse=True))
            continue
        members = filling.setdefault(slot.dtype, [])
        if members and slot.nbytes > room[slot.dtype]:
            closed.append(Bucket(slot.dtype, tuple(members)))
            members = filling[slot.dtype] = []
        if not members:
            room[slot.dtype] = limit
        members.append(i)
        room[slot.dtype] -= slot.nbytes
    closed += [Bucket(dtype, tuple(members)) for dtype, members in filling.items()]
    return tuple(sorted(closed, key=lambda bucket: position[bucket.members[-1]]))


MOST_KEPT = 2  # of one bucket: one holds gradients while the other is reduced


@final
class Buffers:
    """The memory of buckets, used again once no array lies in it any more.

    Args:
        make: Returns new bytes on the host.
    """

    def __init__(self, make: Callable[[int], Array]) -> None:
        self._make = make
        self._kept: dict[int, list[Array]] = {}

    def clear(self) -> None:
        """Keeps none of the memory any more."""
        self._kept.clear()

    def take(self, b: int, size: int, dtype: np.dtype[np.generic], xp: Any = np) -> Array:
        """Returns a buffer of so many items, whose values are undefined.

        Args:
            b: The number of the bucket, which always has the same size and dtype until `clear`.
            size: The number of items.
            dtype: Their dtype.
            xp: The library of the array; only memory of NumPy's is used again.
        """
        if xp is not np:
            fresh: Array = xp.empty(size, dtype=dtype)
            return fresh
        kept = self._kept.setdefault(b, [])
        for i in range(len(kept)):
            if getrefcount(kept[i]) == 2:  # `kept` and this call
                return kept[i].view(dtype)
        memory = self._make(size * dtype.itemsize)
        owner = memory if memory.base is None else memory.base  # the base of all views
        if len(kept) < MOST_KEPT:
            kept.append(owner)
        return owner.view(dtype)


def completed_order(seen: Sequence[int], n: int) -> list[int]:
    """Returns all indices below `n`: those seen, in their order, then the others, the last first.

    >>> completed_order([2, 0], 5)
    [2, 0, 4, 3, 1]
    """
    return [*seen, *sorted(set(range(n)) - set(seen), reverse=True)]
