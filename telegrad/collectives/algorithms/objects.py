"""Exchanges of packed objects, whose sizes the receivers do not know before they come.

An object of k arrays is 1 + k messages: its head, and one message for each array. An object that
cannot travel is one message: the error, in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from telegrad.collectives.algorithms import dissemination
from telegrad.collectives.algorithms.packing import (
    Packed,
    copy_packed,
    failed,
    receive_packed,
    send_packed,
)
from telegrad.collectives.algorithms.tree import children, parent
from telegrad.collectives.link import Link
from telegrad.wire import Buffer


async def all_gather(link: Link, packed: Packed) -> list[Packed]:
    """Returns the objects of all ranks, by rank.

    Steps: 1. Each rank sends its object n - 1 times.
    """
    for distance in range(1, link.size):
        send_packed(link, (link.rank + distance) % link.size, packed)
    return [
        copy_packed(packed) if r == link.rank else await receive_packed(link, r)
        for r in range(link.size)
    ]


async def gather(link: Link, packed: Packed, root: int) -> list[Packed] | None:
    """Returns the objects of all ranks at the root, by rank; None elsewhere.

    If the object of one rank is an error instead, all ranks return that alone.

    Steps: ceil(log2 n) rounds of words, which are empty unless there is an error; the data travels
    meanwhile. Each rank but the root sends its object once.
    """
    found = {link.rank: packed}
    if link.rank != root:
        send_packed(link, root, packed)

    async def receive(source: int) -> Buffer:
        if link.rank == root:  # the object was sent before the word
            found[source] = await receive_packed(link, source)
        return await link.receive(source)

    word = await dissemination.spread(link, bytes(packed[0]) if failed(packed) else b"", receive)
    if link.rank == root:
        for r in range(link.size):
            if r not in found:
                found[r] = await receive_packed(link, r)
    if word:
        return [[word]]
    return [found[r] for r in range(link.size)] if link.rank == root else None


async def broadcast(link: Link, packed: Packed | None, root: int) -> Packed | None:
    """Returns the object of the root; None at the root itself.

    Steps and messages: those of `tree.broadcast`, along the same tree.

    Args:
        link: The link.
        packed: The object at the root, else None.
        root: The root.
    """
    n, place = link.size, (link.rank - root) % link.size
    if packed is not None:
        for child in children(0, n):
            send_packed(link, (child + root) % n, packed)
    await dissemination.barrier(link)
    if packed is not None:
        return None
    received = await receive_packed(link, (parent(place) + root) % n)
    below = children(place, n)
    for child in below:
        send_packed(link, (child + root) % n, received)
    return copy_packed(received) if below else received


async def scatter(link: Link, packed: Sequence[Packed], root: int) -> Packed:
    """Returns the object that the root has for this rank.

    Steps: ceil(log2 n) rounds of signals, during which the data travels. The root sends n - 1
    objects.

    Args:
        link: The link.
        packed: The objects for all ranks at the root, empty elsewhere.
        root: The root.
    """
    if link.rank == root:
        for distance in range(1, link.size):
            to = (root + distance) % link.size
            send_packed(link, to, packed[to])
    await dissemination.barrier(link)
    return packed[root] if link.rank == root else await receive_packed(link, root)
