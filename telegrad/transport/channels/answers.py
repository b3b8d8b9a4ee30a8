"""A reply whose value lies in the memory that its asker's message came in: it is not copied.

So it is when a function returns an argument of its, as it came or after it has written there. Whether
something else refers to that memory is known only when the value itself is gone:

    describe ──▶ kept, and not copied ── the value ends ──▶ settle ──▶ taken over, where that was the last
                                                               └────▶ copied, where it was not
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from telegrad.wire import Buffer, Envelope, Memory, copy_of

if TYPE_CHECKING:
    from telegrad.arrays import SharedMemory

__all__ = ["Answering", "Whole"]


class Whole(Protocol):
    """Memory that messages came in."""

    def whole(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Returns what exports the memory of one part of a message, if an array takes all of it."""

    def take_over(self, holders: list[np.ndarray[Any, Any]]) -> memoryview | None:
        """Lets go of that; has what stands there, if nothing else refers to it by then.

        Args:
            holders: What `whole` returned, and nothing else; taken out if it is taken over.

        Returns:
            The bytes, which nobody here writes to any more; None where somebody may.
        """


@final
class Answering:
    """Memory for one reply; of one thread.

    Args:
        memory: Where it goes.
        loans: What came from there.
    """

    __slots__ = ("_kept", "_loans", "_memory")

    def __init__(self, memory: Memory, loans: Whole) -> None:
        self._memory = memory
        self._loans = loans
        self._kept: dict[int, np.ndarray[Any, Any]] = {}  # exporters, by their ids

    def take(self, size: int) -> memoryview | None:
        """Returns memory for a buffer; see `SlabStream.take`."""
        return self._memory.take(size)

    def lends(self, memory: SharedMemory) -> bool:
        """Tells whether arrays in some memory travel as they are."""
        return self._memory.lends(memory)

    def shadow(self, array: Any) -> memoryview | None:
        """Copies an array of a GPU; see `SlabStream.shadow`."""
        return self._memory.shadow(array)

    def keep(self, array: np.ndarray[Any, Any]) -> Buffer | None:
        """Returns the bytes of an array that takes all of what came once; each is kept once."""
        exporter = self._loans.whole(array)
        if exporter is None or id(exporter) in self._kept:
            return None
        self._kept[id(exporter)] = exporter
        return exporter.data

    def stage(self, envelope: Envelope) -> Envelope:
        """Has what is big of the document lie there; the buffers do, or are kept."""
        texts = self._memory.stage(replace(envelope, buffers=()))
        return replace(envelope, number=0, staged=texts.staged)

    def answering(self) -> Memory:
        """Returns itself."""
        return self

    def settle(self, envelope: Envelope) -> None:
        """Puts what goes back, or a copy, in the place of what was kept."""
        if not self._kept:
            return
        envelope.buffers = buffers = list(envelope.buffers)
        for place in range(len(buffers)):  # `enumerate` would keep what it has said last
            buffer = buffers[place]
            key = id(buffer.obj) if type(buffer) is memoryview else 0
            if key in self._kept:
                del buffer
                buffers[place] = b""
                holders = [self._kept.pop(key)]
                given = self._loans.take_over(holders)
                buffers[place] = self._copy(holders[0]) if given is None else given

    def _copy(self, exporter: np.ndarray[Any, Any]) -> Buffer:
        room = self._memory.take(exporter.nbytes)
        if room is None:
            return copy_of(exporter.data)
        np.copyto(np.frombuffer(room, np.uint8), exporter)
        return room
