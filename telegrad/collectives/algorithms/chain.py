"""A broadcast of a long array along a chain of ranks: each hands on a segment while the next comes.

For n = 4, root 0 and 3 segments; a column is sent at once:

    0 ──▶ 1    s0   s1   s2
    1 ──▶ 2         s0   s1   s2
    2 ──▶ 3              s0   s1   s2

If the ranks of a host follow each other, the array comes to each host once.

J. Pješivac-Grbović, T. Angskun, G. Bosilca, G. Fagg, E. Gabriel, J. Dongarra: Performance analysis
of MPI collective operations (2007).
"""

from __future__ import annotations

import math

from telegrad.collectives.algorithms import dissemination
from telegrad.collectives.algorithms.ring import cut_blocks
from telegrad.collectives.link import Link
from telegrad.collectives.reduction import as_bytes, from_bytes
from telegrad.types import Array

# A step takes as long without data as this many bytes add to it. The times of rings in select.py
# give 350 KB with four ranks and 550 KB with two.
STEP_BYTES = 512 * 2**10


async def broadcast(link: Link, flat: Array, root: int) -> None:
    """Replaces `flat` by the root's array.

    Steps: ceil(log2 n) rounds of signals, during which the root's segments travel, and n - 2 more
    until the last rank has the first segment; the last of m segments comes m - 1 messages later. It
    therefore returns only once all ranks have called it, and does not write `flat` before. Each
    rank but the last sends m messages, B bytes, and each ceil(log2 n) signals.
    """
    n, place = link.size, (link.rank - root) % link.size
    before, after = (link.rank - 1) % n, (link.rank + 1) % n
    parts = cut_blocks(flat, segments(flat.nbytes, n))
    if place == 0 and n > 1:
        for part in parts:
            link.send(after, as_bytes(part), copy=True)
    await dissemination.barrier(link)
    if place == 0:
        return
    for part in parts:
        data = await link.receive(before)
        if place < n - 1:
            link.send(after, data)
        part[...] = from_bytes(data, flat.dtype, part.shape)


def segments(nbytes: int, n: int) -> int:
    """Returns the number of segments that takes the shortest time.

    With m segments, the array takes m + n - 2 steps, each the time of STEP_BYTES + B / m bytes.
    That is least for m = sqrt((n - 2) B / STEP_BYTES).

    >>> [segments(16 * 2**20, n) for n in (2, 3, 4, 8, 16)]
    [1, 6, 8, 14, 21]
    """
    return max(1, round(math.sqrt(max(n - 2, 0) * nbytes / STEP_BYTES)))
