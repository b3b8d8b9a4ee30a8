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

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np

from telegrad.collectives.algorithms.direct import check_wanted
from telegrad.collectives.algorithms.ring import cut_blocks
from telegrad.collectives.algorithms.shared_exchange import WantedPart, exchange
from telegrad.collectives.link import Backend
from telegrad.collectives.reduction import (
    JoinedArrays,
    ReduceOp,
    combine,
    combine_all,
    finish,
    items_of,
)
from telegrad.collectives.shared_memory.boards import BLOCK_BYTES
from telegrad.collectives.shared_memory.residents import LEAST_BYTES, stretch
from telegrad.collectives.shared_memory.room import Room
from telegrad.types import Array, Shape

# Up to this size each rank reduces all of the array: a second meeting takes longer.
ALONE_UP_TO_BYTES = 16 * 2**10


@final
class MemoryBackend(Backend):
    """The backend of ranks that share memory."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def barrier(self) -> None:
        """Returns when every rank has called it."""
        await self._room.meet()

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by the root's array. Meetings: 1 for each block of bytes."""
        room = self._room
        for piece in _pieces(flat.view(np.uint8)):
            block = room.blocks(piece.nbytes, piece.dtype)[root]
            if room.rank == root:
                block[...] = piece
            await room.meet()
            if room.rank != root:
                piece[...] = block

    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        """Replaces `flat` by the reduction over all ranks, combined in the order of the ranks.

        Meetings: for each block of bytes 1 with two ranks, and for up to 16 KiB; 2 otherwise. One
        more from 1 MiB on; if then the arrays of all ranks were made in shared memory, 3 in all, or
        4 the first time, and no block is needed.
        """
        await _reduce(self._room, flat, op, None)

    async def reduce(self, flat: Array, op: ReduceOp, root: int) -> None:
        """Replaces `flat` at the root by the reduction over all ranks; see `all_reduce`."""
        await _reduce(self._room, flat, op, root)

    async def all_gather(
        self,
        array: Array,
        shape_of: Callable[[int], Shape] | None = None,
        *,
        heard: bool = False,
    ) -> list[Array]:
        """Returns a copy of each rank's array, by rank; hears from all ranks."""
        room, gathered = self._room, list[Array]()

        def want() -> dict[int, WantedPart]:
            nonlocal gathered
            gathered = _new(list(map(shape_of or self._shape_of, range(room.size))), array.dtype)
            return {r: WantedPart(each) for r, each in enumerate(gathered)}

        await exchange(room, [array], want, whole=array)
        return gathered

    async def gather(self, array: Array, root: int) -> list[Array] | None:
        """Returns a copy of each rank's array at the root, by rank; None elsewhere."""
        if self._room.rank == root:
            return await self.all_gather(array)
        await exchange(self._room, [array], dict, whole=array)
        return None

    async def scatter(self, flat: Array, parts: Sequence[Array], root: int) -> None:
        """Replaces `flat` by the part that the root has for this rank; see `star.scatter`.

        Raises:
            CollectiveMismatchError: A part has another shape than the array of its rank.
        """
        link = self._room.meeting

        def want() -> dict[int, WantedPart]:
            for r, shape in enumerate(link.call_of(root).parts):
                if link.call_of(r).shape != shape:
                    raise link.mismatch(sorted({root, r}))
            return {root: WantedPart(flat)}

        await exchange(self._room, parts or [flat[:0]] * self._room.size, want)

    async def all_to_all(self, parts: Sequence[Array], whole: Array | None = None) -> list[Array]:
        """Returns the parts that all ranks have for this one; see `direct.all_to_all`.

        Raises:
            CollectiveMismatchError: A rank shows another shape than its receiver expects; on all.
        """
        room, received = self._room, list[Array]()

        def want() -> dict[int, WantedPart]:
            nonlocal received
            check_wanted(room.meeting)
            shapes = [room.meeting.call_of(r).parts for r in range(room.size)]
            received = _new([each[room.rank] for each in shapes], parts[0].dtype)
            before = [parts[0].itemsize * items_of(each[: room.rank]) for each in shapes]
            return dict(enumerate(map(WantedPart, received, before)))

        await exchange(room, parts, want, whole=whole)
        return received

    async def reduce_scatter(
        self, parts: Sequence[Array], op: ReduceOp, whole: Array | None = None
    ) -> Array:
        """Returns the reduction of the parts that all ranks have for this one.

        It combines in rank order, with the bits of `direct.reduce_scatter`.
        """
        room = self._room
        total = np.empty_like(parts[room.rank])
        start = sum(part.nbytes for part in parts[: room.rank])

        def put(r: int, into: Array, piece: Array) -> None:
            if r == 0:
                into[...] = piece
            else:
                combine(op, into.view(total.dtype), piece.view(total.dtype))

        def want() -> dict[int, WantedPart]:
            return dict.fromkeys(range(room.size), WantedPart(total, start))

        await exchange(room, parts, want, whole=whole, put=put)
        finish(op, total, room.size)
        return total

    def _shape_of(self, r: int) -> Shape:
        return self._room.meeting.call_of(r).shape or ()


def _new(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> JoinedArrays:
    return JoinedArrays(np.empty(items_of(shapes), dtype), shapes)


async def _reduce(room: Room, flat: Array, op: ReduceOp, root: int | None) -> None:
    wanted = root is None or root == room.rank
    if root is None and flat.nbytes >= LEAST_BYTES:
        memories = await room.residents(flat)
        if memories is not None:
            arrays = [stretch(each, 0, flat.nbytes).view(flat.dtype) for each in memories]
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
