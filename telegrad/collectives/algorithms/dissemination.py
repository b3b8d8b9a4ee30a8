"""A barrier: every rank learns that every rank has come.

    k = 0    r ──▶ r + 1        n = 6:  after k = 0, r knows of 2 ranks, itself included,
    k = 1    r ──▶ r + 2                after k = 1 of 4, after k = 2 of all 6
    k = 2    r ──▶ r + 4

D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization (1988).
"""

from __future__ import annotations

from collections.abc import Callable

from telegrad.collectives.link import Link, Steps
from telegrad.wire import Buffer


async def barrier(link: Link) -> None:
    """Returns when every rank has called it.

    Steps: ceil(log2 n). Each rank sends ceil(log2 n) signals and no data. It sends the first one
    before it waits for any.
    """
    distance = 1
    while distance < link.size:
        link.signal((link.rank + distance) % link.size)
        await link.signalled((link.rank - distance) % link.size)
        distance *= 2


async def spread(link: Link, word: bytes, receive: Callable[[int], Steps[Buffer]]) -> bytes:
    """Returns the greatest of the words of all ranks, once every rank has called it.

    Steps: ceil(log2 n). Each rank sends ceil(log2 n) words.

    Args:
        link: The link.
        word: The word of this rank.
        receive: Waits for the word that a rank sends next.
    """
    distance = 1
    while distance < link.size:
        link.send((link.rank + distance) % link.size, word)
        word = max(word, bytes(await receive((link.rank - distance) % link.size)))
        distance *= 2
    return word
