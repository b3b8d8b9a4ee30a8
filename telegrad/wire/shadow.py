"""An array of a GPU whose bytes stay on the GPU: what stands for it in host memory that both ends share.

    shadow = room for the array's bytes | mode (1 byte) | GPU (16) | handle (64) | size (8) | offset (8)

A shadow is lent as any buffer is. Its room is as large as the array, and untouched: memory that nobody
writes takes none. What it stands for lies where the rest says, in memory of the GPU that its sender lends
for just as long, unless the mode says otherwise:

    HERE     in the room; so it is when the stream broke, and the shadow goes another way
    THERE    on the GPU
    BOTH     in the room, and on the GPU for trial; whoever reads it says which came of that:
    OPENED   the receiver has found the right bytes there
    REFUSED  it has not
    GONE     nowhere: the GPU failed

Sender and receiver change the mode in memory that they share. Between a change and who looks at it there is
a message, or its answer; but for HERE, where either way is right for as long as the sender keeps the
memory of the GPU.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, final

import numpy as np

from telegrad.arrays import SharedPlace
from telegrad.errors import DecodeError

__all__ = ["SHADOW_BYTES", "Mode", "Shadow", "mode_of", "set_mode", "write_place"]

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
