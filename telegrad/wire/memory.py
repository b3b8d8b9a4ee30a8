"""Copies of bytes without the interpreter's lock, blocks, the interface of shared memory, shadows.

`tobytes` and `bytearray` hold the lock until the last byte is copied. For some GiB these are
seconds in which no thread of the process runs, including that of the heartbeats: its peers would
consider it dead.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from enum import IntEnum
from sys import getrefcount
from typing import Any, Final, Literal, final

import numpy as np

from telegrad.arrays import SharedMemory, SharedPlace, shared_below
from telegrad.critical import critical
from telegrad.errors import DecodeError
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.lending import LENT_BYTES

# Below this, the copy takes less than 0.1 ms, and setting up NumPy's copy takes more than that.
BIG_BYTES: Final = 2**18


class Memory:
    """The memory that this process shares with another one; in this class itself there is none."""

    __slots__ = ()

    def take(self, size: int) -> memoryview | None:
        """Returns shared memory of that size for one outgoing buffer; None if there is none.

        There is none for `LENT_BYTES` and less.
        """
        return None

    def lends(self, memory: SharedMemory) -> bool:
        """Returns True if the peer can read arrays that were made in `memory` without a copy."""
        return False

    def keep(self, array: np.ndarray[Any, Any]) -> Buffer | None:
        """Returns an array's bytes uncopied until `settle`; None if they must be copied now."""
        return None

    def stage(self, envelope: Envelope) -> Envelope:
        """Returns an envelope whose big parts lie in shared memory, or have copies there."""
        return envelope

    def answering(self) -> Memory:
        """Returns memory for outgoing values that are settled once nobody here needs the value."""
        return self

    def settle(self, envelope: Envelope) -> None:
        """Replaces the bytes that were kept by bytes that nobody writes to any more."""
        return

    def shadow(self, array: Any) -> memoryview | None:
        """Copies an array of CuPy's into memory of its GPU that both processes share.

        Returns:
            The shadow to send in its place (see `Shadow`); None if they share no GPU memory.
        """
        return None


NO_MEMORY: Final = Memory()


def bytes_of(
    array: np.ndarray[Any, Any], order: Literal["C", "F"], memory: Memory = NO_MEMORY
) -> Buffer:
    """Copies an array's bytes once, in the order of C or of Fortran; or shares them uncopied.

    >>> list(bytes_of(np.array([[1, 2], [3, 4]], np.uint8), "F"))
    [1, 3, 2, 4]

    Args:
        array: The array.
        order: The order of the copy.
        memory: The memory for the copy, if there is any. An array is not copied if it was made in
            shared memory and the memory recognises it, or if the memory keeps it.
    """
    if array.nbytes <= LENT_BYTES and array.nbytes < BIG_BYTES and array.dtype.names is None:
        return array.tobytes(order)  # there is no shared memory for so little
    in_order = array.flags.c_contiguous if order == "C" else array.flags.f_contiguous
    if in_order and memory is not NO_MEMORY and array.nbytes > LENT_BYTES:
        below = shared_below(array)
        if below is not None and not below.copied and memory.lends(below):
            return _octets(array, order).data
        if (kept := memory.keep(array)) is not None:
            return kept
    if array.dtype.names is not None and array.dtype.itemsize:
        # A copy field by field would leave in its gaps old data from this process' memory.
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
    """Returns a writable copy of bytes, to which nothing else refers.

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
    """Returns a contiguous array's bytes, not copied, as NumPy's own array class."""
    return np.asarray(array).reshape(-1, order=order).view(np.uint8)


# -- blocks: memory of long buffers that is used again -------------------------------------------
#
# The system clears each page of fresh memory when it is first written. For a long buffer that takes
# as long as to copy it twice.

LEAST_BLOCK_BYTES: Final = 2**20  # smaller memory is kept by the allocator
# All blocks of one worker: an `all_reduce` between two hosts has no more under way.
KEPT_BYTES: Final = 32 * 2**20


def _references(kept: list[np.ndarray[Any, Any]]) -> int:
    return getrefcount(kept[0])


_FREE: Final = _references([np.empty(0)])  # the references to a block that only a list has


@final
class Blocks:
    """The blocks of one worker. Any thread takes one; it is free again when nothing refers to it.

    >>> blocks = Blocks()
    >>> block = blocks.take(2**20)
    >>> first = np.frombuffer(block, np.uint8).ctypes.data
    >>> del block
    >>> np.frombuffer(blocks.take(2**20), np.uint8).ctypes.data == first
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[np.ndarray[Any, Any]] = []  # the one taken last is the first

    def take(self, size: int) -> memoryview | None:
        """Returns memory of exactly that size; None if fresh memory is as good.

        Args:
            size: In bytes.
        """
        if size < LEAST_BLOCK_BYTES or size > KEPT_BYTES:
            return None
        with critical.section, self._lock:
            kept = self._kept
            free = [i for i in range(len(kept)) if getrefcount(kept[i]) == _FREE]
            fitting = [i for i in free if kept[i].nbytes == size]
            if fitting:
                kept.insert(0, kept.pop(fitting[0]))
                return kept[0].data
            room = KEPT_BYTES - size - sum([each.nbytes for each in kept])
            if room + sum([kept[i].nbytes for i in free]) < 0:
                return None
            while room < 0:  # those that were not taken for the longest time make way
                room += kept.pop(free.pop()).nbytes
            kept.insert(0, np.empty(size, np.uint8))
            return kept[0].data

    def copy_of(self, data: Buffer) -> Buffer:
        """Returns a copy of bytes."""
        view = memoryview(data)
        block = self.take(view.nbytes)
        if block is None:
            return copy_of(view)
        np.copyto(np.frombuffer(block, np.uint8), np.frombuffer(view, np.uint8))
        return block

    def drop(self) -> None:
        """Returns the memory of all blocks to the system, as soon as nothing refers to them."""
        with critical.section, self._lock:
            self._kept.clear()


# -- a shadow: it stands in shared host memory for an array whose bytes stay on the GPU ----------
#
#     shadow = room for the array | mode (1 byte) | GPU (16) | handle (64) | size (8) | offset (8)
#
# A shadow is lent like any buffer. Its room is as large as the array, and untouched: memory that
# nobody writes takes no pages. The rest names the place of the bytes, in memory of the GPU that the
# sender lends for just as long. The mode states where the bytes really are:
#
#     HERE     in the room: the stream broke, and the shadow is sent in another way
#     THERE    on the GPU
#     BOTH     in the room, and on the GPU for trial; the receiver writes the result:
#     OPENED   the receiver has found the right bytes there
#     REFUSED  the receiver has not found them
#     GONE     nowhere: the GPU failed
#
# Sender and receiver change the mode in memory that they share. Between a change and the other
# side's reading there is always a message, or its answer. The exception is HERE: then either place
# is right for as long as the sender keeps the memory of the GPU.

_PLACE: Final = struct.Struct(">B16s64sQQ")  # its numbers big-endian
SHADOW_BYTES: Final = _PLACE.size


@final
class Mode(IntEnum):
    """The place of a shadow's bytes."""

    HERE = 0
    THERE = 1
    BOTH = 2
    OPENED = 3
    REFUSED = 4
    GONE = 5


MODES: Final = frozenset(map(int, Mode))


def write_place(shadow: np.ndarray[Any, Any], mode: Mode, place: SharedPlace) -> None:
    """Writes the part behind the room of a shadow, given as its bytes."""
    packed = _PLACE.pack(mode, place.gpu.encode(), place.handle, place.size, place.offset)
    shadow[-SHADOW_BYTES:] = np.frombuffer(packed, np.uint8)


def mode_of(shadow: np.ndarray[Any, Any]) -> Mode:
    """Returns the mode of a shadow, given as its bytes; GONE if they are no shadow."""
    number = int(shadow[-SHADOW_BYTES])
    return Mode(number) if number in MODES else Mode.GONE


def set_mode(shadow: np.ndarray[Any, Any], mode: Mode) -> None:
    """Changes the mode of a shadow, given as its bytes."""
    shadow[-SHADOW_BYTES] = mode


@final
@dataclass(frozen=True, slots=True)
class Shadow:
    """A shadow that arrived in place of an array of a GPU.

    Attributes:
        octets: All bytes of the shadow.
        room: The room as an array, valid only in some modes. It keeps the whole shadow alive.
    """

    octets: np.ndarray[Any, Any]
    room: np.ndarray[Any, Any]

    @property
    def mode(self) -> Mode:
        """The present place of the bytes."""
        return mode_of(self.octets)

    @property
    def place(self) -> SharedPlace:
        """The place of the array on a GPU.

        Raises:
            DecodeError: The place is malformed.
        """
        _, gpu, handle, size, offset = _PLACE.unpack(self.octets[-SHADOW_BYTES:].tobytes())
        try:
            return SharedPlace(gpu.decode("ascii"), handle, size, offset)
        except UnicodeDecodeError as error:
            raise DecodeError("an array of a GPU that has no name") from error

    def answer(self, mode: Mode) -> None:
        """Writes the result of a trial for the sender, if the shadow is writable."""
        if self.octets.flags.writeable:
            set_mode(self.octets, mode)

    def at_home(self) -> np.ndarray[Any, Any]:
        """Returns the array from the room.

        Raises:
            DecodeError: The bytes are not in the room.
        """
        mode = self.mode
        if mode in (Mode.THERE, Mode.GONE):
            raise DecodeError(
                "an array that its sender shares on a GPU"
                + (", which failed" if mode is Mode.GONE else ", and this worker does not")
            )
        return self.room if self.room.flags.writeable else self.room.copy()
