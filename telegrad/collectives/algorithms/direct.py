"""Every rank sends to every other one: a single step, for small arrays.

     0   1   2
0    ·   ◀   ◀
1    ◀   ·   ◀       row receives from column
2    ◀   ◀   ·
"""

from __future__ import annotations

from telegrad.collectives.link import Link
from telegrad.collectives.reduction import ReduceOp, as_bytes, combine, finish, from_bytes
from telegrad.types import Array

__all__ = ["all_gather", "all_reduce"]


async def all_reduce(link: Link, flat: Array, op: ReduceOp) -> None:
    """Replaces `flat` by the reduction over all ranks, combined in rank order on each.

    Steps: 1. Each rank sends n - 1 messages, (n - 1) B bytes, for an array of B bytes. The results
    are bitwise equal, because every rank combines the same arrays in the same order.
    """
    _send_to_all(link, flat)
    total = flat.copy() if link.rank == 0 else await _receive(link, 0, flat)
    for r in range(1, link.size):
        combine(op, total, flat if r == link.rank else await _receive(link, r, flat))
    finish(op, total, link.size)
    flat[...] = total


async def all_gather(link: Link, array: Array) -> list[Array]:
    """Returns new arrays: a copy of each rank's array, by rank.

    Steps: 1. Each rank sends n - 1 messages, n - 1 times the bytes of its own array.
    """
    _send_to_all(link, array)
    gathered: list[Array] = []
    for r in range(link.size):
        if r == link.rank:
            gathered.append(array.copy())
        else:
            data = await link.receive(r)
            gathered.append(from_bytes(data, array.dtype, link.shape(r)))
    return gathered


def _send_to_all(link: Link, array: Array) -> None:
    if link.size == 1:
        return
    data = as_bytes(array.copy())  # one copy for all: the array changes before every rank has it
    for distance in range(1, link.size):
        link.send((link.rank + distance) % link.size, data)


async def _receive(link: Link, source: int, like: Array) -> Array:
    return from_bytes(await link.receive(source), like.dtype, like.shape)
