"""The memory of a group on one host: a board of each rank, which all of them map.

    step │ digests of calls │ notes │ sleeps │ listens │ marks ║ block 0 │ block 1 ║ queues

Its rank alone writes to it, but for the marks, and what receivers write to the queues (`queues`).

A rank that has come to a step writes the step's number into its board, last, and looks at those of
the others. Steps count up over all operations of the group, and every rank takes the same ones. A
rank cannot pass a step before all have come to it, so two blocks, two digests and two notes, used
in turn, are enough: whoever writes the one of step k + 2 knows that all ranks have come to k + 1,
and are done with k.

A rank that has looked for long enough sleeps until a message comes:

    writes `sleeps`; looks once more; sleeps     the last to come: writes its step; reads `sleeps`

Whichever order these have, the sleeper sees the step or the other one sees the sleeper. That needs
a fence between the write and the read of each, and writes that others see in their order, as x86-64
has them.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, Final, final

import numpy as np

from telegrad.collectives.messages import Signature
from telegrad.critical import critical
from telegrad.types import Array
from telegrad.wire import Buffer

WORD = 8  # bytes: aligned, so that it is written and read at once
# Places of words; a cache line has eight.
STEP, DIGEST, NOTES, SLEEPS, LISTENS, MARKS = 0, 1, 3, 8, 9, 16
HEAD_BYTES = 4096
MOST_RANKS = HEAD_BYTES // WORD - MARKS
BLOCK_BYTES = 2**20
BOARD_BYTES = HEAD_BYTES + 2 * BLOCK_BYTES  # without queues
OCTET: Final = np.dtype(np.uint8)


def has_order() -> bool:
    """Returns True if this processor's writes are seen by others in the order they are made."""
    return platform.machine() in ("x86_64", "AMD64")


@cache
def digest_of(signature: Signature) -> int:
    """Returns a number above 0 for a call: the same for calls that fit each other, no others."""
    said = repr(signature.compared()).encode()
    return int.from_bytes(blake2b(said, digest_size=WORD).digest(), "little") or 1


@final
class Board:
    """The memory of one rank.

    Args:
        memory: `BOARD_BYTES` bytes and the queues, all zero at first.

    Attributes:
        words: The words at its head.
        blocks: The two blocks, as arrays of bytes.
        writable: True if this process may write to it.
    """

    def __init__(self, memory: Buffer) -> None:
        octets = np.frombuffer(memory, np.uint8)
        self.words = octets[:HEAD_BYTES].data.cast("Q")
        self.blocks = octets[HEAD_BYTES:BOARD_BYTES].reshape(2, BLOCK_BYTES)
        self._queues = octets[BOARD_BYTES:].data
        self.writable = bool(octets.flags.writeable)

    def queue(self, to: int, size: int) -> memoryview:
        """Returns the memory of the queue for a rank, of which each has so many bytes."""
        return self._queues[to * size :][:size]

    def mark(self, rank: int) -> None:
        """Shows the owner of this board that a rank has it."""
        if self.writable:
            self.words[MARKS + rank] = 1

    def marked(self, rank: int) -> bool:
        """Returns True if a rank has written to this board."""
        return bool(self.words[MARKS + rank])


@final
class Boards:
    """The boards of all ranks, as one rank sees them."""

    def __init__(self, rank: int, boards: Sequence[Board]) -> None:
        self._words = [each.words for each in boards]
        self._own = boards[rank].words
        self._others = {r: each.words for r, each in enumerate(boards) if r != rank}
        self._blocks = [each.blocks for each in boards]
        self._fence = threading.Lock()
        self._step = 0
        self._half = 0

    def come(self, digest: int, note: int = 0) -> int:
        """Comes to the next step; returns its number.

        Args:
            digest: The number of the call of which it is a step.
            note: A number for the other ranks.
        """
        self._step += 1
        self._own[DIGEST + self._step % 2] = digest
        self._own[NOTES + self._step % 2] = note
        self._own[STEP] = self._step
        self._order()
        return self._step

    def all_here(self, step: int) -> bool:
        """Returns True if all ranks have come to a step."""
        for words in self._others.values():  # noqa: SIM110 - a generator takes twice as long
            if words[STEP] < step:
                return False
        return True

    def others_calls(self, step: int) -> set[int]:
        """Returns the digests of the calls that the others make; for a step to which all came."""
        return {words[DIGEST + step % 2] for words in self._others.values()}

    def spoil(self) -> None:
        """Shows that this rank does not go on from the step that it has come to last.

        The one before is good: another rank may still have to look at it.
        """
        self._own[DIGEST + self._step % 2] = 0
        self._order()

    def notes(self, step: int) -> list[int]:
        """Returns the notes of all ranks, by rank; for a step to which all came."""
        return [words[NOTES + step % 2] for words in self._words]

    def sleep(self, step: int) -> None:
        """Shows that this rank is about to sleep until all have come to a step; 0 for no step."""
        self._own[SLEEPS] = step
        self._order()

    def sleepers(self, step: int) -> list[int]:
        """Returns the ranks that sleep until all have come to a step."""
        return [r for r, words in self._others.items() if words[SLEEPS] == step]

    def behind(self, step: int) -> list[int]:
        """Returns the ranks that have not come to a step."""
        return [r for r, words in self._others.items() if words[STEP] < step]

    def blocks(self, nbytes: int = BLOCK_BYTES, dtype: np.dtype[Any] = OCTET) -> list[Array]:
        """Returns the arrays of all ranks in the next blocks; every rank must call it.

        Args:
            nbytes: Their bytes, at most `BLOCK_BYTES`.
            dtype: Their dtype.
        """
        self._half ^= 1
        return [each[self._half, :nbytes].view(dtype) for each in self._blocks]

    def _order(self) -> None:
        """Makes earlier writes seen before later reads: taking a lock is a fence."""
        with critical.section, self._fence:
            pass
