"""The choice of an algorithm, by facts that all ranks share: the bytes and the number of ranks.

| B bytes on n ranks | n up to 8 | n from 9 |
|---|---|---|
| all_reduce up to n 4 KiB | direct.all_reduce | circulant.all_reduce_in_order |
| all_reduce up to 256 KiB | direct.all_reduce | direct.all_reduce |
| all_reduce up to n 256 KiB | ring.all_reduce | circulant.all_reduce |
| all_reduce above | ring.all_reduce | ring.all_reduce |
| reduce up to 256 KiB | star.reduce | star.reduce |
| reduce above | star.reduce_in_blocks | star.reduce_in_blocks |
| broadcast up to n MiB | tree.broadcast | tree.broadcast |
| broadcast above, n from 3 | chain.broadcast | chain.broadcast |
| all_gather | direct.all_gather | circulant.all_gather, n from 16 |

Up to 256 KiB all reductions combine in rank order. The choice for `all_gather` is by the number of
ranks alone, because their arrays may have different sizes.

The limits for more than 8 ranks and for `broadcast` come from a formula for the time, which `tests/collectives/test_costs.py`
holds against the choice. A message costs each of its two ranks the work w and is 2 w on its way. So
a step takes T = 4 w, and each further message in it T / 2. STEP_BYTES take T. The first message
above EAGER_BYTES to a rank is announced: that takes two more steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, final

from telegrad.collectives.algorithms import chain, circulant, direct, ring, star, tree
from telegrad.collectives.link import EAGER_BYTES, Link, Steps
from telegrad.collectives.reduction import ReduceOp
from telegrad.types import Array

__all__ = [
    "DIRECT_UP_TO_BYTES",
    "AllGather",
    "AllReduce",
    "Broadcast",
    "Choice",
    "Reduce",
    "select_all_gather",
    "select_all_reduce",
    "select_broadcast",
    "select_reduce",
]

AllGather: TypeAlias = Callable[[Link, Array], Steps[list[Array]]]
AllReduce: TypeAlias = Callable[[Link, Array, ReduceOp], Steps[None]]
Broadcast: TypeAlias = Callable[[Link, Array, int], Steps[None]]
Reduce: TypeAlias = Callable[[Link, Array, ReduceOp, int], Steps[None]]
F = TypeVar("F")

# Up to this size, one step in which each rank sends to all others takes no longer than the 2 (n -
# 1) steps of a ring. Milliseconds direct and ring, processes on two busy cores: n = 2: 256 KiB 3.5
# and 5.3, 1 MiB 18 and 9, 16 MiB 85 and 69. n = 4: 256 KiB 16 and 16, 1 MiB 43 and 28, 16 MiB 393
# and 172.
DIRECT_UP_TO_BYTES = 256 * 2**10

# Up to this number of ranks, n - 1 messages in one step take no longer than ceil(log2 n) steps.
FEW_RANKS = 8
# From this number on, they take twice as long with small arrays. Where arrays of one size have the
# ceil(log2 n) messages announced, they are shorter, by a sixth of the time at most.
MANY_RANKS = 16
# Up to n times this size, few of the messages with up to n / 2 arrays need be announced.
IN_ORDER_PART_BYTES = 4 * 2**10
# Up to n times this size, the 2 ceil(log2 n) messages take less than the 2 (n - 1) steps of a ring,
# though they are announced. Above, bytes decide, and the ring sends fewest bytes between hosts that
# have several ranks each.
BLOCK_BYTES = 256 * 2**10
# From n times this size on, a chain takes less than a tree: for x = B / STEP_BYTES they take
# (sqrt(x) + sqrt(n - 2))^2 T and ceil(log2 n) (1 + x) T, and are equal near x = 2 n.
CHAIN_PART_BYTES = 2 * chain.STEP_BYTES


@final
@dataclass(frozen=True, slots=True)
class Choice(Generic[F]):
    """The algorithm for an operation.

    Attributes:
        run: The algorithm.
        eager_bytes: The most bytes that it sends to one rank before that rank has entered.
    """

    run: F
    eager_bytes: int


def select_all_reduce(nbytes: int, n: int) -> Choice[AllReduce]:
    """Returns the algorithm for an array of this many bytes on n ranks.

    >>> select_all_reduce(2**16, 8).run is direct.all_reduce
    True
    >>> select_all_reduce(2**16, 16).run is circulant.all_reduce_in_order
    True
    >>> select_all_reduce(2**20, 8).run is ring.all_reduce
    True
    >>> select_all_reduce(2**20, 9).run is circulant.all_reduce
    True
    """
    if n == 1 or nbytes <= DIRECT_UP_TO_BYTES:
        if n > FEW_RANKS and nbytes <= n * IN_ORDER_PART_BYTES:
            return Choice(circulant.all_reduce_in_order, min(n * nbytes, EAGER_BYTES))
        return Choice(direct.all_reduce, _unrequested(nbytes, nbytes))
    if n > FEW_RANKS and nbytes <= n * BLOCK_BYTES:
        return Choice(circulant.all_reduce, min(nbytes, 2 * EAGER_BYTES))  # 2 messages to one rank
    return Choice(ring.all_reduce, _unrequested(nbytes, nbytes // n))


def select_reduce(nbytes: int, n: int) -> Choice[Reduce]:
    """Returns the algorithm for an array of this many bytes on n ranks.

    Two ranks send the same bytes either way, and the root has half of the work in blocks.

    >>> select_reduce(2**20, 4).run is star.reduce_in_blocks
    True
    """
    if n > 1 and nbytes > DIRECT_UP_TO_BYTES:
        return Choice(star.reduce_in_blocks, _unrequested(nbytes, nbytes // n))
    return Choice(star.reduce, _unrequested(nbytes, nbytes))


def select_broadcast(nbytes: int, n: int) -> Choice[Broadcast]:
    """Returns the algorithm for an array of this many bytes on n ranks.

    >>> select_broadcast(2**22, 4).run is tree.broadcast
    True
    >>> select_broadcast(2**23, 4).run is chain.broadcast
    True
    """
    if n > 2 and nbytes > n * CHAIN_PART_BYTES:
        return Choice(chain.broadcast, 0)  # its segments are larger than EAGER_BYTES
    return Choice(tree.broadcast, _unrequested(nbytes, nbytes))


def select_all_gather(nbytes: int, n: int) -> Choice[AllGather]:
    """Returns the algorithm for n ranks, of which this one has an array of this many bytes.

    >>> select_all_gather(8, 15).run is direct.all_gather
    True
    >>> select_all_gather(8, 16).run is circulant.all_gather
    True
    """
    if n >= MANY_RANKS:
        return Choice(circulant.all_gather, EAGER_BYTES)
    return Choice(direct.all_gather, _unrequested(nbytes, nbytes))


def _unrequested(nbytes: int, message_bytes: int) -> int:
    """Returns the bytes of an array that go to a rank before it asks, in messages of this size."""
    return nbytes if message_bytes <= EAGER_BYTES else 0
