"""The choice of an algorithm, by facts that all ranks share: the bytes and the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from telegrad.collectives.algorithms import direct, ring, star
from telegrad.collectives.link import Link, Steps
from telegrad.collectives.reduction import ReduceOp
from telegrad.types import Array

__all__ = ["AllReduce", "Reduce", "select_all_reduce", "select_reduce"]

AllReduce: TypeAlias = Callable[[Link, Array, ReduceOp], Steps[None]]
Reduce: TypeAlias = Callable[[Link, Array, ReduceOp, int], Steps[None]]

# Up to this size, one step in which each rank sends to all others takes no longer than the 2 (n -
# 1) steps of a ring. Milliseconds direct and ring, processes on two busy cores: n = 2: 256 KiB 3.5
# and 5.3, 1 MiB 18 and 9, 16 MiB 85 and 69. n = 4: 256 KiB 16 and 16, 1 MiB 43 and 28, 16 MiB 393
# and 172.
DIRECT_UP_TO_BYTES = 256 * 2**10


def select_all_reduce(nbytes: int, n: int) -> AllReduce:
    """Returns the algorithm for an array of this many bytes on n ranks.

    >>> select_all_reduce(2**20, 4) is ring.all_reduce
    True
    """
    if n > 1 and nbytes > DIRECT_UP_TO_BYTES:
        return ring.all_reduce
    return direct.all_reduce


def select_reduce(nbytes: int, n: int) -> Reduce:
    """Returns the algorithm for an array of this many bytes on n ranks.

    Two ranks send the same bytes either way, and the root has half of the work in blocks.

    >>> select_reduce(2**20, 4) is star.reduce_in_blocks
    True
    """
    if n > 1 and nbytes > DIRECT_UP_TO_BYTES:
        return star.reduce_in_blocks
    return star.reduce
