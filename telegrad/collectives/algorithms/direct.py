"""Every rank sends to every other one: a single step.

     0   1   2
0    ·   ◀   ◀
1    ◀   ·   ◀       row receives from column
2    ◀   ◀   ·
"""

from __future__ import annotations

from collections.abc import Sequence

from telegrad.collectives.link import Link
from telegrad.collectives.reduction import ReduceOp, as_bytes, combine, finish, from_bytes
from telegrad.types import Array

__all__ = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]


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
            gathered.append(from_bytes(data, array.dtype, link.call_of(r).shape or ()))
    return gathered


async def reduce_scatter(link: Link, parts: Sequence[Array], op: ReduceOp) -> Array:
    """Returns a new array: the reduction of the parts that all ranks have for this one.

    Steps: 1. Each rank sends n - 1 messages, the bytes of its parts for the others. Each part is
    combined in rank order, so it has the same bits as in `all_reduce`. Products of complex numbers
    are an exception: NumPy's depend on the place of an item in its array.
    """
    _send_parts(link, parts)
    own = parts[link.rank]
    total = own.copy() if link.rank == 0 else await _receive(link, 0, own)
    for r in range(1, link.size):
        combine(op, total, own if r == link.rank else await _receive(link, r, own))
    finish(op, total, link.size)
    return total


async def all_to_all(link: Link, parts: Sequence[Array]) -> list[Array]:
    """Returns new arrays: the parts that all ranks have for this one, by rank.

    Steps: 1. Each rank sends n - 1 messages, the bytes of its parts for the others.

    Raises:
        CollectiveMismatchError: A rank sends another shape than its receiver expects. Each rank
            compares the calls of all, so all raise it.
    """
    _send_parts(link, parts)
    received: list[Array] = []
    for r in range(link.size):
        if r == link.rank:
            received.append(parts[r].copy())
        else:
            data = await link.receive(r)
            shape = link.call_of(r).parts[link.rank]
            received.append(from_bytes(data, parts[0].dtype, shape))
    _check_wanted(link)
    return received


def _check_wanted(link: Link) -> None:
    calls = [link.call_of(r) for r in range(link.size)]
    for r, call in enumerate(calls):
        for source, shape in enumerate(call.wanted):
            if calls[source].parts[r] != shape:
                raise link.mismatch(sorted({source, r}))


def _send_parts(link: Link, parts: Sequence[Array]) -> None:
    for distance in range(1, link.size):
        to = (link.rank + distance) % link.size
        link.send(to, as_bytes(parts[to].copy()))


def _send_to_all(link: Link, array: Array) -> None:
    if link.size == 1:
        return
    data = as_bytes(array.copy())  # one copy for all: the array changes before every rank has it
    for distance in range(1, link.size):
        link.send((link.rank + distance) % link.size, data)


async def _receive(link: Link, source: int, like: Array) -> Array:
    return from_bytes(await link.receive(source), like.dtype, like.shape)
