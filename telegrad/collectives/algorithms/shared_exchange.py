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
from typing import NamedTuple

import numpy as np

from telegrad.collectives.messages import Signature
from telegrad.collectives.shared_memory.boards import BLOCK_BYTES
from telegrad.collectives.shared_memory.residents import LEAST_BYTES, stretch
from telegrad.collectives.shared_memory.room import Room
from telegrad.errors import DecodeError
from telegrad.types import Array

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
    _check_length(room, longest, parts[0].itemsize)
    if whole is not None and min(note & 2**40 - 1 for note in notes) >= LEAST_BYTES:
        memories = await room.residents(_octets(whole))
        if memories is not None:
            for r, (into, start) in sorted(wanted.items()):
                rest = _octets(into)[done:]
                sections.put(r, rest, stretch(memories[r], start + done, rest.size))
            await room.meet()  # then nobody reads the arrays of others any more
            return
    await sections.exchange(wanted, done, longest)


def _check_length(room: Room, longest: int, itemsize: int) -> None:
    """Checks that the calls of all ranks have a part of such a length, as each part takes meetings.

    Raises:
        DecodeError: None has, so that a rank has shown a wrong number.
    """
    most = itemsize * max(_most_items(room.meeting.call_of(r)) for r in range(room.size))
    if longest > most:
        raise DecodeError(f"a rank shows a part of {longest} bytes, and no call has over {most}")


def _most_items(call: Signature) -> int:
    """Returns a number of items that no part of a call exceeds."""
    shapes = () if call.shape is None else (call.shape,)
    whole = max(map(math.prod, (*shapes, *call.parts, (0,))))
    return whole + sum(map(_most_items, call.calls))


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
