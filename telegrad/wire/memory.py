"""Copies of bytes that hold up nobody: big ones are made without the interpreter's lock.

`tobytes` and `bytearray` hold it until the last byte is copied. For some GiB these are seconds in
which no thread of the process runs, that of the heartbeats among them: its peers would take it
for dead.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, Protocol, final

import numpy as np

from telegrad.arrays import SharedMemory, SharedPlace, shared_below
from telegrad.errors import DecodeError
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.lending import LENT_BYTES

__all__ = [
    "NO_MEMORY",
    "SHADOW_BYTES",
    "Memory",
    "Mode",
    "Shadow",
    "bytes_of",
    "copy_of",
    "mode_of",
    "set_mode",
    "write_place",
]


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


# -- an array of a GPU whose bytes stay on the GPU: what stands for it in host memory that both ends share --
#
#     shadow = room for the array's bytes | mode (1 byte) | GPU (16) | handle (64) | size (8) | offset (8)
#
# A shadow is lent as any buffer is. Its room is as large as the array, and untouched: memory that nobody
# writes takes none. What it stands for lies where the rest says, in memory of the GPU that its sender lends
# for just as long, unless the mode says otherwise:
#
#     HERE     in the room; so it is when the stream broke, and the shadow goes another way
#     THERE    on the GPU
#     BOTH     in the room, and on the GPU for trial; whoever reads it says which came of that:
#     OPENED   the receiver has found the right bytes there
#     REFUSED  it has not
#     GONE     nowhere: the GPU failed
#
# Sender and receiver change the mode in memory that they share. Between a change and who looks at it there is
# a message, or its answer; but for HERE, where either way is right for as long as the sender keeps the
# memory of the GPU.

_PLACE: Final = struct.Struct(">B16s64sQQ")  # its numbers big-endian
SHADOW_BYTES: Final = _PLACE.size


@final
class Mode(IntEnum):
    """Where the bytes are."""

    HERE = 0
    THERE = 1
    BOTH = 2
    OPENED = 3
    REFUSED = 4
    GONE = 5


MODES: Final = frozenset(map(int, Mode))


def write_place(shadow: np.ndarray[Any, Any], mode: Mode, place: SharedPlace) -> None:
    """Writes what stands behind the room of a shadow, given as its bytes."""
    packed = _PLACE.pack(mode, place.gpu.encode(), place.handle, place.size, place.offset)
    shadow[-SHADOW_BYTES:] = np.frombuffer(packed, np.uint8)


def mode_of(shadow: np.ndarray[Any, Any]) -> Mode:
    """Returns the mode of a shadow, given as its bytes; GONE where it is none."""
    number = int(shadow[-SHADOW_BYTES])
    return Mode(number) if number in MODES else Mode.GONE


def set_mode(shadow: np.ndarray[Any, Any], mode: Mode) -> None:
    """Changes the mode of a shadow, given as its bytes."""
    shadow[-SHADOW_BYTES] = mode


@final
@dataclass(frozen=True, slots=True)
class Shadow:
    """What came in place of an array of a GPU.

    Attributes:
        octets: All of it.
        room: The array, as the room has it; to be read where the mode says so. It keeps all of it.
    """

    octets: np.ndarray[Any, Any]
    room: np.ndarray[Any, Any]

    @property
    def mode(self) -> Mode:
        """Where the bytes are, now."""
        return mode_of(self.octets)

    @property
    def place(self) -> SharedPlace:
        """Where it lies on a GPU.

        Raises:
            DecodeError: That is garbage.
        """
        _, gpu, handle, size, offset = _PLACE.unpack(self.octets[-SHADOW_BYTES:].tobytes())
        try:
            return SharedPlace(gpu.decode("ascii"), handle, size, offset)
        except UnicodeDecodeError as error:
            raise DecodeError("an array of a GPU that has no name") from error

    def answer(self, mode: Mode) -> None:
        """Tells the sender what came of its trial, where that can be written."""
        if self.octets.flags.writeable:
            set_mode(self.octets, mode)

    def at_home(self) -> np.ndarray[Any, Any]:
        """Returns the array from the room.

        Raises:
            DecodeError: It is not there.
        """
        mode = self.mode
        if mode in (Mode.THERE, Mode.GONE):
            raise DecodeError(
                "an array that its sender shares on a GPU"
                + (", which failed" if mode is Mode.GONE else ", and this worker does not")
            )
        return self.room if self.room.flags.writeable else self.room.copy()
