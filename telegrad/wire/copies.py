"""Copies of bytes that hold up nobody: big ones are made without the interpreter's lock.

`tobytes` and `bytearray` hold it until the last byte is copied. For some GiB these are seconds in
which no thread of the process runs, that of the heartbeats among them: its peers would take it
for dead.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol, final

import numpy as np

from telegrad.arrays import SharedMemory, shared_below
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.lending import LENT_BYTES

__all__ = ["NO_MEMORY", "Memory", "bytes_of", "copy_of"]

# Below, the copy takes less than 0.1 ms, and NumPy's own way of it more than the copy.
BIG_BYTES: Final = 2**18


class Memory(Protocol):
    """What this process shares with another one."""

    def take(self, size: int) -> memoryview | None:
        """Returns so many bytes, for one buffer that goes there; None where there are none.

        That is so of `LENT_BYTES` and less.
        """

    def lends(self, memory: SharedMemory) -> bool:
        """Tells whether arrays that were made in some memory go there as they are."""

    def keep(self, array: np.ndarray[Any, Any]) -> Buffer | None:
        """Returns an array's bytes as they are, until `settle`; None if they are to be copied now."""

    def stage(self, envelope: Envelope) -> Envelope:
        """Returns an envelope whose big parts lie there, or have copies there."""

    def answering(self) -> Memory:
        """Returns memory for what goes there and is settled, as soon as nobody here needs the value."""

    def settle(self, envelope: Envelope) -> None:
        """Puts bytes that nobody writes to any more in the place of those that were kept."""

    def shadow(self, array: Any) -> memoryview | None:
        """Copies an array of CuPy's into memory of its GPU that both share.

        Returns:
            What goes there in its place (`wire.shadow`); None where they share none.
        """


@final
class _NoMemory:
    """Nothing is shared."""

    __slots__ = ()

    def take(self, size: int) -> None:
        del size

    def lends(self, memory: SharedMemory) -> bool:
        del memory
        return False

    def keep(self, array: np.ndarray[Any, Any]) -> None:
        del array

    def stage(self, envelope: Envelope) -> Envelope:
        return envelope

    def answering(self) -> Memory:
        return self

    def settle(self, envelope: Envelope) -> None:
        del envelope

    def shadow(self, array: object) -> None:
        del array


NO_MEMORY: Final = _NoMemory()


def bytes_of(
    array: np.ndarray[Any, Any], order: Literal["C", "F"], memory: Memory = NO_MEMORY
) -> Buffer:
    """Copies an array's bytes, in the order of C or of Fortran, once; or shares them as they are.

    >>> list(bytes_of(np.array([[1, 2], [3, 4]], np.uint8), "F"))
    [1, 3, 2, 4]

    Args:
        array: What is copied.
        order: Of the copy.
        memory: Where it is made, if there is any. An array that was made in shared memory is not
            copied where that is known; nor is one that the memory keeps.
    """
    if array.nbytes <= LENT_BYTES and array.nbytes < BIG_BYTES and array.dtype.names is None:
        return array.tobytes(order)  # for so little there is no memory
    in_order = array.flags.c_contiguous if order == "C" else array.flags.f_contiguous
    if in_order and memory is not NO_MEMORY and array.nbytes > LENT_BYTES:
        below = shared_below(array)
        if below is not None and memory.lends(below):
            return _octets(array, order).data
        if (kept := memory.keep(array)) is not None:
            return kept
    if array.dtype.names is not None and array.dtype.itemsize:
        # Field by field, a copy would have in its gaps whatever lay in this process' memory.
        array = array.view(np.dtype((np.void, array.dtype.itemsize)))
    room = memory.take(array.nbytes)
    if room is None and array.nbytes < BIG_BYTES:
        return array.tobytes(order)
    copy: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, room, order=order)
    if in_order:
        np.copyto(_octets(copy, order), _octets(array, order))
    else:
        np.copyto(copy, array)
    return _octets(copy, order).data if room is None else room


def copy_of(data: Buffer) -> Buffer:
    """Returns a writable copy of bytes, which nothing else refers to.

    >>> copy_of(b"abc")
    bytearray(b'abc')
    """
    view = memoryview(data)
    if view.nbytes < BIG_BYTES:
        return bytearray(view)
    copy = np.empty(view.nbytes, np.uint8)
    np.copyto(copy, np.frombuffer(view, np.uint8))
    return copy.data


def _octets(array: np.ndarray[Any, Any], order: Literal["C", "F"]) -> np.ndarray[Any, Any]:
    """Returns a contiguous array's bytes, not copied; of no class but NumPy's own."""
    return np.asarray(array).reshape(-1, order=order).view(np.uint8)
