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

import numpy as np

from telegrad.collectives.algorithms.ring import cut_blocks
from telegrad.collectives.reduction import ReduceOp, combine_all
from telegrad.collectives.shared_memory.boards import BLOCK_BYTES
from telegrad.collectives.shared_memory.residents import LEAST_BYTES
from telegrad.collectives.shared_memory.room import Room
from telegrad.types import Array

__all__ = ["all_reduce", "broadcast", "reduce"]

# Up to this size each rank reduces all of the array: a second meeting takes longer.
ALONE_UP_TO_BYTES = 16 * 2**10


async def broadcast(room: Room, flat: Array, root: int) -> None:
    """Replaces `flat` by the root's array. Meetings: 1 for each block of bytes."""
    for piece in _pieces(flat.view(np.uint8)):
        block = room.blocks(piece.nbytes, piece.dtype)[root]
        if room.rank == root:
            block[...] = piece
        await room.meet()
        if room.rank != root:
            piece[...] = block


async def all_reduce(room: Room, flat: Array, op: ReduceOp) -> None:
    """Replaces `flat` by the reduction over all ranks, combined in the order of the ranks.

    Meetings: for each block of bytes 1 with two ranks, and for up to 16 KiB; 2 otherwise. One more
    from 1 MiB on; if then the arrays of all ranks were made in shared memory, 3 in all, or 4 the
    first time, and no block is needed.
    """
    await _reduce(room, flat, op, None)


async def reduce(room: Room, flat: Array, op: ReduceOp, root: int) -> None:
    """Replaces `flat` at the root by the reduction over all ranks; see `all_reduce`."""
    await _reduce(room, flat, op, root)


async def _reduce(room: Room, flat: Array, op: ReduceOp, root: int | None) -> None:
    wanted = root is None or root == room.rank
    if root is None and flat.nbytes >= LEAST_BYTES:
        memories = await room.residents(flat)
        if memories is not None:
            arrays = [each[: flat.nbytes].view(flat.dtype) for each in memories]
            await _reduce_in_place(room, arrays, op)
            return
    alone = (room.size == 2 or flat.nbytes <= ALONE_UP_TO_BYTES) and _same_anywhere(op, flat)
    for piece in _pieces(flat):
        blocks = room.blocks(piece.nbytes, piece.dtype)
        own = blocks[room.rank]
        own[...] = piece
        await room.meet()
        if alone and wanted:
            combine_all(op, blocks, piece)
        if alone:
            continue
        parts = [cut_blocks(block, room.size) for block in blocks]
        mine = [each[room.rank] for each in parts]
        total = np.empty_like(mine[0])
        combine_all(op, mine, total)
        mine[room.rank][...] = total
        await room.meet()
        if wanted:
            for r, part in enumerate(cut_blocks(piece, room.size)):
                part[...] = parts[r][r]


async def _reduce_in_place(room: Room, arrays: Sequence[Array], op: ReduceOp) -> None:
    """Replaces the arrays of all ranks, which all map; each rank reduces its part of all."""
    parts = [cut_blocks(array, room.size) for array in arrays]
    for pieces in zip(*(_pieces(each[room.rank]) for each in parts), strict=True):
        target = pieces[room.rank]
        total = target if room.rank < 2 else np.empty_like(target)  # the first two are read at once
        combine_all(op, pieces, total)
        if total is not target:
            target[...] = total
    await room.meet()
    for r, part in enumerate(parts[room.rank]):
        if r != room.rank:
            part[...] = parts[r][r]
    await room.meet()  # then nobody reads the arrays of others any more


def _pieces(flat: Array) -> Iterator[Array]:
    """Returns the parts of an array that fit a block; of an empty one that alone."""
    step = BLOCK_BYTES // flat.itemsize
    for start in range(0, max(flat.size, 1), step):
        yield flat[start : start + step]


def _same_anywhere(op: ReduceOp, flat: Array) -> bool:
    """Returns True if NumPy's result does not depend on where in memory items lie."""
    return op is not ReduceOp.PRODUCT or flat.dtype.kind != "c"
