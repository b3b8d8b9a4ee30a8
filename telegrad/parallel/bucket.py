"""Buckets of parameters that are reduced together: a pure assignment, the same on every rank.

Backward reaches the last parameters first, so buckets are filled from the end:

    parameters   0   1   2   3   4   5          bucket 0: 5 4       reduced while backward
    bytes        4   4   2   6   3   3          bucket 1: 3 2       still computes bucket 1, ...
    limit 8    [0 1][2  3][ 4   5 ]             bucket 2: 1 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telegrad.types import Shape

__all__ = ["Bucket", "Slot", "assign_buckets"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The shape and dtype of an array that goes into a bucket."""

    shape: Shape
    dtype: np.dtype[np.generic]

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
        members: The indices of the arrays, descending.
    """

    dtype: np.dtype[np.generic]
    members: tuple[int, ...]


def assign_buckets(slots: Sequence[Slot], limit: int) -> tuple[Bucket, ...]:
    """Distributes arrays over buckets of up to `limit` bytes; a larger array gets a bucket alone.

    Going from the last array to the first, each array goes into the open bucket of its dtype. If it
    does not fit, that bucket is closed and the next one is opened.

    Args:
        slots: The arrays, in the order in which forward uses them.
        limit: The most bytes of a bucket.

    Returns:
        The buckets in the order in which backward should complete them: descending by their lowest
        index, which backward reaches last. Every index is in exactly one bucket.

    >>> slots = [Slot((n,), np.dtype(np.int8)) for n in (4, 4, 2, 6, 3, 3)]
    >>> [bucket.members for bucket in assign_buckets(slots, 8)]
    [(5, 4), (3, 2), (1, 0)]
    """
    closed: list[Bucket] = []
    filling: dict[np.dtype[np.generic], list[int]] = {}
    room: dict[np.dtype[np.generic], int] = {}
    for i, slot in reversed(list(enumerate(slots))):
        members = filling.setdefault(slot.dtype, [])
        if members and slot.nbytes > room[slot.dtype]:
            closed.append(Bucket(slot.dtype, tuple(members)))
            members = filling[slot.dtype] = []
        if not members:
            room[slot.dtype] = limit
        members.append(i)
        room[slot.dtype] -= slot.nbytes
    closed += [Bucket(dtype, tuple(members)) for dtype, members in filling.items()]
    return tuple(sorted(closed, key=lambda bucket: -bucket.members[-1]))
