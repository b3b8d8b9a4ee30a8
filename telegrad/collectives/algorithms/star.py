"""All ranks send to one, the root, or the root sends to all others.

     0 ──▶ 1      gather and reduce, n = 4, root 1      1 ──▶ 0      scatter
     2 ──▶ 1                                            1 ──▶ 2
     3 ──▶ 1                                            1 ──▶ 3

Signals that go round make every rank wait until all ranks have called the operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from telegrad.collectives.algorithms import direct, dissemination
from telegrad.collectives.algorithms.ring import cut_blocks
from telegrad.collectives.link import Link
from telegrad.collectives.reduction import ReduceOp, as_bytes, combine, finish, from_bytes
from telegrad.types import Array


async def reduce(link: Link, flat: Array, op: ReduceOp, root: int) -> None:
    """Replaces `flat` at the root by the reduction over all ranks, combined in rank order.

    Steps: ceil(log2 n) rounds of signals, during which the data travels. Each rank but the root
    sends 1 message of B bytes. The bits are those of `direct.all_reduce`.
    """
    if link.rank != root:
        link.send(root, as_bytes(flat), copy=True)
    await dissemination.barrier(link)
    if link.rank != root:
        return
    total = await _contribution(link, 0, flat)
    for r in range(1, link.size):
        combine(op, total, flat if r == root else await _contribution(link, r, flat))
    finish(op, total, link.size)
    flat[...] = total


async def _contribution(link: Link, r: int, flat: Array) -> Array:
    if r == link.rank:
        return flat.copy()
    return from_bytes(await link.receive(r), flat.dtype, flat.shape)


async def reduce_in_blocks(link: Link, flat: Array, op: ReduceOp, root: int) -> None:
    """Replaces `flat` at the root by the reduction over all ranks; each rank reduces one block.

    Steps: 2, a `direct.reduce_scatter` and a message to the root. Each rank sends n messages of B
    bytes in all; the root sends n - 1 messages, and not its own block. The bits are those of
    `reduce`, and the root combines B bytes, not (n - 1) B.
    """
    blocks = cut_blocks(flat, link.size)
    own = await direct.reduce_scatter(link, blocks, op)
    if link.rank != root:
        link.send(root, as_bytes(own))
        return
    for r, block in enumerate(blocks):
        block[...] = own if r == root else await _contribution(link, r, block)


async def gather(link: Link, array: Array, root: int) -> list[Array] | None:
    """Returns new arrays at the root: a copy of each rank's array, by rank; None elsewhere.

    Steps: ceil(log2 n) rounds of signals, during which the data travels. Each rank but the root
    sends 1 message, the bytes of its own array.
    """
    if link.rank != root:
        link.send(root, as_bytes(array), copy=True)
    await dissemination.barrier(link)
    if link.rank != root:
        return None
    gathered: list[Array] = []
    for r in range(link.size):
        if r == root:
            gathered.append(array.copy())
        else:
            data = await link.receive(r)
            gathered.append(from_bytes(data, array.dtype, link.call_of(r).shape or ()))
    return gathered


async def scatter(link: Link, array: Array, parts: Sequence[Array], root: int) -> None:
    """Replaces `array` by the part that the root has for this rank.

    Steps: 1 for the data, then ceil(log2 n) rounds of signals. The root sends n - 1 messages, the
    bytes of the parts for the others. Each rank compares its part with its array before it
    signals, so no rank returns if a part does not fit.

    Args:
        link: The link.
        array: This rank's array.
        parts: The parts for all ranks, by rank; empty on ranks other than the root.
        root: The root.

    Raises:
        CollectiveMismatchError: The part has another shape than the array.
    """
    if link.rank == root:
        for distance in range(1, link.size):
            to = (root + distance) % link.size
            link.send(to, as_bytes(parts[to]), copy=True)
        part = parts[root]
    else:
        data = await link.receive(root)
        stated = link.call_of(root).parts
        if stated[link.rank : link.rank + 1] != (link.call_of(link.rank).shape,):
            raise link.mismatch(sorted({root, link.rank}))
        part = from_bytes(data, array.dtype, array.shape)
    await dissemination.barrier(link)
    array[...] = part
