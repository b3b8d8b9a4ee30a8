"""A broadcast from one rank to all others, along a binomial tree.

For n = 6 and root 0:

step 0    0 ──▶ 4
step 1    0 ──▶ 2
step 2    0 ──▶ 1    2 ──▶ 3    4 ──▶ 5
"""

from __future__ import annotations

from telegrad.collectives.algorithms import dissemination
from telegrad.collectives.link import Link
from telegrad.collectives.reduction import as_bytes, from_bytes
from telegrad.types import Array


async def broadcast(link: Link, flat: Array, root: int) -> None:
    """Replaces `flat` by the root's array.

    Steps: ceil(log2 n) rounds of signals, during which the root's own messages travel, and at most
    ceil(log2 n) - 1 more until the last rank has the data. It therefore returns only once all ranks
    have called it, and does not write `flat` before. In all there are n - 1 messages of B bytes, at
    most ceil(log2 n) of them from one rank, the root, and ceil(log2 n) signals from each rank.
    """
    n, place = link.size, (link.rank - root) % link.size
    if place == 0 and n > 1:
        data = as_bytes(flat.copy())
        for child in children(0, n):
            link.send((child + root) % n, data)
    await dissemination.barrier(link)
    if place == 0:
        return
    data = await link.receive((parent(place) + root) % n)
    for child in children(place, n):
        link.send((child + root) % n, data)
    flat[...] = from_bytes(data, flat.dtype, flat.shape)


def parent(place: int) -> int:
    """Returns the place from which `place` (not 0, the root) gets data: its lowest bit cleared.

    >>> [parent(place) for place in range(1, 6)]
    [0, 0, 2, 0, 4]
    """
    return place & (place - 1)


def children(place: int, n: int) -> list[int]:
    """Returns the places to which a place hands the data on; the one with most descendants first.

    >>> children(0, 6), children(2, 6), children(4, 6)
    ([4, 2, 1], [3], [5])
    """
    bit = 1
    found: list[int] = []
    while bit < n and not place & bit:
        if place + bit < n:
            found.insert(0, place + bit)
        bit *= 2
    return found
