"""Ranks of one host that share memory: each puts its array there, and reads those of the others.

     rank 0  ─▶ block ─┐      ┌─▶ rank 0: 0 + 1
                       ├ meet ┤                          up to two ranks, or small arrays
     rank 1  ─▶ block ─┘      └─▶ rank 1: 0 + 1

     rank 0  ─▶ block ─┐      ┌─▶ its third of 0 + 1 + 2 ─▶ block ─┐      ┌─▶ all thirds
     rank 1  ─▶ block ─┤ meet ├─▶ its third              ─▶ block ─┤ meet ├─▶ all thirds
     rank 2  ─▶ block ─┘      └─▶ its third              ─▶ block ─┘      └─▶ all thirds

An array goes through the blocks in pieces that stay in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telegrad.collectives.algorithms.ring import block_bounds
from telegrad.collectives.reduction import ReduceOp, combine_all
from telegrad.collectives.shared_memory.boards import BLOCK_BYTES
from telegrad.collectives.shared_memory.room import Room
from telegrad.types import Array

__all__ = ["all_reduce", "barrier", "broadcast", "reduce"]

# Up to this size each rank reduces all of the array: a second meeting takes longer.
ALONE_UP_TO_BYTES = 16 * 2**10


async def barrier(room: Room) -> None:
    """Returns when every rank has called it. Meetings: 1."""
    await room.meet()


async def broadcast(room: Room, flat: Array, root: int) -> None:
    """Replaces `flat` by the root's array. Meetings: 1 for each block of bytes."""
    for piece in _pieces(flat.view(np.uint8)):
        block = room.blocks(piece)[root]
        if room.rank == root:
            block[...] = piece
        await room.meet()
        if room.rank != root:
            piece[...] = block


async def all_reduce(room: Room, flat: Array, op: ReduceOp) -> None:
    """Replaces `flat` by the reduction over all ranks, combined in the order of the ranks.

    Meetings: for each block of bytes 1 with two ranks, and for up to 16 KiB; 2 otherwise.
    """
    await _reduce(room, flat, op, None)


async def reduce(room: Room, flat: Array, op: ReduceOp, root: int) -> None:
    """Replaces `flat` at the root by the reduction over all ranks; see `all_reduce`."""
    await _reduce(room, flat, op, root)


async def _reduce(room: Room, flat: Array, op: ReduceOp, root: int | None) -> None:
    wanted = root is None or root == room.rank
    alone = (room.size == 2 or flat.nbytes <= ALONE_UP_TO_BYTES) and _same_anywhere(op, flat)
    for piece in _pieces(flat):
        blocks = room.blocks(piece)
        own = blocks[room.rank]
        own[...] = piece
        await room.meet()
        if alone and wanted:
            combine_all(op, blocks, piece)
        if alone:
            continue
        bounds = block_bounds(piece.size, room.size)
        parts = [slice(bounds[r], bounds[r + 1]) for r in range(room.size)]
        mine = parts[room.rank]
        total = np.empty_like(own[mine])
        combine_all(op, [block[mine] for block in blocks], total)
        own[mine] = total
        await room.meet()
        if wanted:
            for part, block in zip(parts, blocks, strict=True):
                piece[part] = block[part]


def _pieces(flat: Array) -> Iterator[Array]:
    """Returns the parts of an array that fit a block; of an empty one that alone."""
    step = BLOCK_BYTES // flat.itemsize
    for start in range(0, max(flat.size, 1), step):
        yield flat[start : start + step]


def _same_anywhere(op: ReduceOp, flat: Array) -> bool:
    """Returns True if NumPy's result does not depend on where in memory items lie."""
    return op is not ReduceOp.PRODUCT or flat.dtype.kind != "c"
