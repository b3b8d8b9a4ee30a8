"""Ranks of one host that share memory exchange parts: each shows its own, and reads those for it.

     first block       call │ part for 0 │ part for 1 │ part for 2      its length in the note
     further blocks           part for 0 │ part for 1 │ part for 2      as long as any part goes on

     rank 0  ─▶ block ─┐      ┌─▶ rank 0 reads `part for 0` in all blocks
     rank 1  ─▶ block ─┤ meet ├─▶ rank 1 reads `part for 1` in all blocks
     rank 2  ─▶ block ─┘      └─▶ rank 2 reads `part for 2` in all blocks

A part that is the same for all ranks has the block for itself. Calls go along, since shapes may
differ between ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from telegrad.arrays import views_of
from telegrad.collectives.algorithms.direct import check_wanted
from telegrad.collectives.reduction import ReduceOp, combine, finish
from telegrad.collectives.shared_memory.boards import BLOCK_BYTES
from telegrad.collectives.shared_memory.residents import LEAST_BYTES
from telegrad.collectives.shared_memory.room import Room
from telegrad.types import Array, Shape

__all__ = [
    "WantedPart",
    "all_gather",
    "all_gather_rows",
    "all_to_all",
    "all_to_all_rows",
    "exchange",
    "gather",
    "reduce_scatter",
    "scatter",
]

CALL_BYTES = 32 * 2**10  # in the first block; a longer call has blocks of its own
ALIGNMENT = 64  # bytes of a line of the processor's caches


class WantedPart(NamedTuple):
    """The part of one rank that another one reads.

    Attributes:
        into: The array that it is read into.
        start: The bytes before it in the array of which the parts of that rank are cut.
    """

    into: Array
    start: int = 0


async def exchange(
    room: Room,
    parts: Sequence[Array],
    want: Callable[[], Mapping[int, WantedPart]],
    *,
    whole: Array | None = None,
    put: Callable[[int, Array, Array], None] | None = None,
) -> None:
    """Shows the parts of this rank, and reads what it wants of the others and of itself.

    Meetings: 1 for n parts of at most (1 MiB - 32 KiB) / n. One more for each further 1 MiB / n of
    the longest part. If the parts are cut of one array, and have 1 MiB on each rank, one more: for
    arrays of all ranks that were made in shared memory, 3 in all, or 4 the first time. Each byte
    for another rank is copied in once, unless it lies there, and out once.

    Args:
        room: The ranks.
        parts: The part for each rank, or one that is the same for all.
        want: Returns what this rank reads, by rank; it may look at the calls of all.
        whole: The array of which the parts are cut, one after the other, if there is one.
        put: Takes a rank, an array to write, and the bytes of that rank that belong there; by
            default it copies. At each place it gets the bytes of all ranks in their order.
    """
    shown = [_octets(part) for part in parts]
    call = np.frombuffer(room.call, np.uint8)
    sections = _Sections(room, shown, put or _copy)
    blocks = room.blocks()
    blocks[room.rank][: min(call.size, CALL_BYTES)] = call[:CALL_BYTES]
    done = sections.show(blocks, 0, CALL_BYTES)
    notes = await room.meet(call.size << 40 | max(part.size for part in shown))
    sizes, longest = [note >> 40 for note in notes], max(note & 2**40 - 1 for note in notes)
    if max(sizes) <= CALL_BYTES:
        room.learn_calls([block[:n].tobytes() for block, n in zip(blocks, sizes, strict=True)])
        wanted = want()
        sections.take(blocks, wanted, 0, CALL_BYTES)
    else:
        calls = [np.empty(n, np.uint8) for n in sizes]
        shown_calls = {r: WantedPart(each) for r, each in enumerate(calls)}
        await _Sections(room, [call], _copy).exchange(shown_calls, 0, max(sizes))
        room.learn_calls([each.tobytes() for each in calls])
        wanted, done = want(), 0
    if whole is not None and min(note & 2**40 - 1 for note in notes) >= LEAST_BYTES:
        memories = await room.residents(_octets(whole))
        if memories is not None:
            for r, (into, start) in sorted(wanted.items()):
                rest = _octets(into)[done:]
                sections.put(r, rest, memories[r][start + done :][: rest.size])
            await room.meet()  # then nobody reads the arrays of others any more
            return
    await sections.exchange(wanted, done, longest)


async def all_gather(
    room: Room, array: Array, shape_of: Callable[[int], Shape] | None = None
) -> list[Array]:
    """Returns new arrays: a copy of each rank's array, by rank; see `direct.all_gather`."""
    gathered: list[Array] = []
    await _all_gather(
        room, array, shape_of or (lambda r: room.meeting.call_of(r).shape or ()), _apart(gathered)
    )
    return gathered


async def all_gather_rows(room: Room, array: Array, shape_of: Callable[[int], Shape]) -> Array:
    """Returns the same copies, joined along the first axis as one new array."""
    rows = _Rows()
    await _all_gather(room, array, shape_of, rows.make)
    return rows.array


async def _all_gather(
    room: Room, array: Array, shape_of: Callable[[int], Shape], make: _Make
) -> None:
    def want() -> dict[int, WantedPart]:
        made = make([shape_of(r) for r in range(room.size)], array.dtype)
        return {r: WantedPart(each) for r, each in enumerate(made)}

    await exchange(room, [array], want, whole=array)


async def gather(room: Room, array: Array, root: int) -> list[Array] | None:
    """Returns new arrays at the root: a copy of each rank's array, by rank; None elsewhere."""
    if room.rank == root:
        return await all_gather(room, array)
    await exchange(room, [array], dict, whole=array)
    return None


async def scatter(room: Room, array: Array, parts: Sequence[Array], root: int) -> None:
    """Replaces `array` by the part that the root has for this rank; see `star.scatter`.

    Raises:
        CollectiveMismatchError: A part has another shape than the array of its rank.
    """
    link = room.meeting

    def want() -> dict[int, WantedPart]:
        for r, shape in enumerate(link.call_of(root).parts):
            if link.call_of(r).shape != shape:
                raise link.mismatch(sorted({root, r}))
        return {root: WantedPart(array)}

    await exchange(room, parts or [array[:0]] * room.size, want)


async def all_to_all(room: Room, parts: Sequence[Array], whole: Array | None = None) -> list[Array]:
    """Returns new arrays: the parts that all ranks have for this one; see `direct.all_to_all`.

    Raises:
        CollectiveMismatchError: A rank shows another shape than its receiver expects; on all ranks.
    """
    received: list[Array] = []
    await _all_to_all(room, parts, whole, _apart(received))
    return received


async def all_to_all_rows(room: Room, parts: Sequence[Array], whole: Array | None = None) -> Array:
    """Returns the same parts, joined along the first axis as one new array; raises the same."""
    rows = _Rows()
    await _all_to_all(room, parts, whole, rows.make)
    return rows.array


async def _all_to_all(room: Room, parts: Sequence[Array], whole: Array | None, make: _Make) -> None:
    def want() -> dict[int, WantedPart]:
        check_wanted(room.meeting)
        shapes = [room.meeting.call_of(r).parts for r in range(room.size)]
        made = make([each[room.rank] for each in shapes], parts[0].dtype)
        before = [sum(math.prod(shape) for shape in each[: room.rank]) for each in shapes]
        places = zip(made, before, strict=True)
        return {r: WantedPart(into, into.itemsize * n) for r, (into, n) in enumerate(places)}

    await exchange(room, parts, want, whole=whole)


async def reduce_scatter(
    room: Room, parts: Sequence[Array], op: ReduceOp, whole: Array | None = None
) -> Array:
    """Returns a new array: the reduction of the parts that all ranks have for this one.

    It combines in rank order, with the bits of `direct.reduce_scatter`.
    """
    total = np.empty_like(parts[room.rank])
    start = sum(part.nbytes for part in parts[: room.rank])

    def put(r: int, into: Array, piece: Array) -> None:
        if r == 0:
            into[...] = piece
        else:
            combine(op, into.view(total.dtype), piece.view(total.dtype))

    def want() -> dict[int, WantedPart]:
        return {r: WantedPart(total, start) for r in range(room.size)}

    await exchange(room, parts, want, whole=whole, put=put)
    finish(op, total, room.size)
    return total


# Makes arrays of some shapes and a dtype, to be read into.
_Make: TypeAlias = Callable[[Sequence[Shape], np.dtype[Any]], list[Array]]


def _apart(made: list[Array]) -> _Make:
    """Returns the function that makes arrays with memory of their own, and adds them to a list."""

    def make(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> list[Array]:
        made.extend(np.empty(shape, dtype) for shape in shapes)
        return made

    return make


class _Rows:
    """An array of parts that are joined along the first axis; an array without axes is a row."""

    array: Array

    def make(self, shapes: Sequence[Shape], dtype: np.dtype[Any]) -> list[Array]:
        """Makes the array and returns its parts."""
        rows = sum(shape[0] if shape else 1 for shape in shapes)
        self.array = np.empty((rows, *shapes[0][1:]), dtype)
        return views_of(self.array.reshape(-1), shapes)


class _Sections:
    """The blocks of all ranks, cut into equal sections: one for each rank, or one for all.

    Args:
        room: The ranks.
        parts: The bytes that this rank shows in each section.
        put: As for `exchange`.
    """

    def __init__(
        self, room: Room, parts: Sequence[Array], put: Callable[[int, Array, Array], None]
    ) -> None:
        self.put = put
        self._room = room
        self._parts = parts
        self._mine = 0 if len(parts) == 1 else room.rank

    def show(self, blocks: Sequence[Array], start: int, head: int) -> int:
        """Copies the parts for others from a byte on into its block; returns the byte after.

        Args:
            blocks: The blocks of all ranks.
            start: The first byte of each part.
            head: The bytes at the head of each block that are used otherwise.
        """
        own, size = blocks[self._room.rank][head:], self._size(head)
        for section, part in enumerate(self._parts):
            if section != self._mine or len(self._parts) == 1:
                piece = part[start : start + size]
                own[section * size :][: piece.size] = piece
        return start + size

    def take(
        self, blocks: Sequence[Array], wanted: Mapping[int, WantedPart], start: int, head: int
    ) -> None:
        """Reads what this rank wants, from a byte on: from the blocks, and from its own part."""
        size = self._size(head)
        for r in sorted(wanted):
            into = _octets(wanted[r].into)[start : start + size]
            if into.size:
                shown = blocks[r][head + self._mine * size :]
                if r == self._room.rank:
                    shown = self._parts[self._mine][start:]
                self.put(r, into, shown[: into.size])

    async def exchange(self, wanted: Mapping[int, WantedPart], start: int, end: int) -> None:
        """Shows all parts and reads what this rank wants, between two bytes of each part."""
        while start < end:
            blocks = self._room.blocks()
            after = self.show(blocks, start, 0)
            await self._room.meet()
            self.take(blocks, wanted, start, 0)
            start = after

    def _size(self, head: int) -> int:
        return (BLOCK_BYTES - head) // len(self._parts) // ALIGNMENT * ALIGNMENT


def _octets(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _copy(_: int, into: Array, piece: Array) -> None:
    into[...] = piece
