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

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from telegrad.collectives.algorithms.ring import block_bounds
from telegrad.collectives.reduction import ReduceOp, combine_all
from telegrad.collectives.shared_memory.boards import BLOCK_BYTES
from telegrad.collectives.shared_memory.residents import LEAST_BYTES
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

    Meetings: for each block of bytes 1 with two ranks, and for up to 16 KiB; 2 otherwise. If the
    arrays of all ranks were made in shared memory, 3 in all, and no block is needed.
    """
    await _reduce(room, flat, op, None)


async def reduce(room: Room, flat: Array, op: ReduceOp, root: int) -> None:
    """Replaces `flat` at the root by the reduction over all ranks; see `all_reduce`."""
    await _reduce(room, flat, op, root)


async def _reduce(room: Room, flat: Array, op: ReduceOp, root: int | None) -> None:
    wanted = root is None or root == room.rank
    if root is None and flat.nbytes >= LEAST_BYTES:
        arrays = await room.residents(flat)
        if arrays is not None:
            await _reduce_in_place(room, arrays, op)
            return
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
        parts = [slice(start, stop) for start, stop in pairwise(bounds)]
        mine = parts[room.rank]
        total = np.empty_like(own[mine])
        combine_all(op, [block[mine] for block in blocks], total)
        own[mine] = total
        await room.meet()
        if wanted:
            for part, block in zip(parts, blocks, strict=True):
                piece[part] = block[part]


async def _reduce_in_place(room: Room, arrays: Sequence[Array], op: ReduceOp) -> None:
    """Replaces the arrays of all ranks, which all map; each rank reduces its part of all."""
    own = arrays[room.rank]
    parts = [slice(start, stop) for start, stop in pairwise(block_bounds(own.size, room.size))]
    mine = [list(_pieces(array[parts[room.rank]])) for array in arrays]
    for pieces in zip(*mine, strict=True):
        target = pieces[room.rank]
        total = target if room.rank < 2 else np.empty_like(target)  # the first two are read at once
        combine_all(op, pieces, total)
        if total is not target:
            target[...] = total
    await room.meet()
    for part, array in zip(parts, arrays, strict=True):
        if array is not own:
            own[part] = array[part]
    await room.meet()  # then nobody reads the arrays of others any more


def _pieces(flat: Array) -> Iterator[Array]:
    """Returns the parts of an array that fit a block; of an empty one that alone."""
    step = BLOCK_BYTES // flat.itemsize
    for start in range(0, max(flat.size, 1), step):
        yield flat[start : start + step]


def _same_anywhere(op: ReduceOp, flat: Array) -> bool:
    """Returns True if NumPy's result does not depend on where in memory items lie."""
    return op is not ReduceOp.PRODUCT or flat.dtype.kind != "c"
