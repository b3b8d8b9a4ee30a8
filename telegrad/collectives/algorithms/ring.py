"""An all-reduce round a ring, for large arrays: a rank's bytes do not grow with their number.

The array is cut into n blocks. In the first n - 1 steps each block goes round once and is reduced
on the way. In the next n - 1 steps the finished blocks go round. n = 3, block b as it leaves rank
r:

    step    rank 0         rank 1         rank 2
    0       b0             b1             b2             own blocks
    1       b2 + b2        b0 + b0        b1 + b1
    2       b1 + b1 + b1   b2 + b2 + b2   b0 + b0 + b0   whole: kept and handed on
    3       b0 whole       b1 whole       b2 whole       kept and handed on

P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from telegrad.collectives.link import Link
from telegrad.collectives.reduction import ReduceOp, as_bytes, combine, finish, from_bytes
from telegrad.types import Array

# A long block goes in several messages: one is reduced while the next comes. Half of the size takes
# a tenth more of the processor's time.
SEGMENT_BYTES = 4 * 2**20
# A rank sends a further segment of its own once one has come from the left. So few copies are under
# way, however long the array is, and they are in memory that was used before (`wire.Blocks`).
AT_ONCE = 2


async def all_reduce(link: Link, flat: Array, op: ReduceOp) -> None:
    """Replaces `flat` by the reduction over all ranks.

    Steps: 2 (n - 1), and one more for each 8 MiB of a block above 8 MiB. Each rank sends 2 (n - 1)
    messages, one in each step and all to the next rank; of blocks above 4 MiB one for each 4 MiB.
    They have about 2 (n - 1) / n B bytes for an array of B bytes. Exactly: all blocks but the
    (r + 1)-th, and all but the (r + 2)-th, where blocks differ by one item at most. Only the first
    block is a copy; received data is reduced in place and handed on. The results are bitwise equal,
    because each block is finished on one rank. `flat` is not written before every rank has come.

    A rank begins with two segments of its own block, and sends the next one when a segment that is
    its left neighbour's own has come. All ranks receive in one order, that of `coming`: first in,
    first out.

    Args:
        link: The link, of two ranks or more.
        flat: The array.
        op: The operation.
    """
    n, r = link.size, link.rank
    left, right = (r - 1) % n, (r + 1) % n
    m = segments(flat.nbytes // n)
    blocks = [cut_blocks(block, m) for block in cut_blocks(flat, n)]
    coming = deque((0, s) for s in range(min(m, AT_ONCE)))
    for _, s in coming:
        link.send(right, as_bytes(blocks[r][s]), copy=True)
    while coming:
        k, s = coming.popleft()
        own = blocks[(r - k - 1) % n][s]
        data = from_bytes(await link.receive(left), flat.dtype, own.shape)
        if k < n - 1:
            combine(op, data, own)
        if k == n - 2:
            finish(op, data, n)
        if k < 2 * n - 3:
            link.send(right, as_bytes(data))
            coming.append((k + 1, s))
        if k >= n - 2:
            own[...] = data
        if k == 0 and s + AT_ONCE < m:
            link.send(right, as_bytes(blocks[r][s + AT_ONCE]), copy=True)
            coming.append((0, s + AT_ONCE))


def segments(nbytes: int) -> int:
    """Returns the number of messages in which a block of so many bytes goes.

    >>> [segments(nbytes) for nbytes in (0, 2**22, 2**22 + 1, 2**25)]
    [1, 1, 2, 8]
    """
    return -(-nbytes // SEGMENT_BYTES) or 1


def cut_blocks(flat: Array, n: int) -> list[Array]:
    """Returns views of n blocks of an array of one axis, whose sizes differ by one item at most.

    >>> import numpy as np
    >>> [block.tolist() for block in cut_blocks(np.arange(7), 3)]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    if n == 1:
        return [flat]
    small, larger = divmod(flat.size, n)
    bounds = [b * small + min(b, larger) for b in range(n + 1)]
    return [flat[start:end] for start, end in pairwise(bounds)]
