"""What one document may cost its reader beyond its own size: items, colliding keys, copied bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.limits import DecodeLimits
from telegrad.wire.unpacking import too_many_elements

__all__ = ["FEW_KEYS", "Allowance"]

# Keys that collide take quadratic time, and whoever sends numbers chooses where they fall. Honest
# ones take 0.1 us each, 1 us where a class of the user's hashes them: a hundred and ten times less.
SECONDS_PER_KEY: Final = 10e-6
SECONDS_AT_LEAST: Final = 0.25  # of the processor, for one document
FEW_KEYS: Final = 256  # at once; if all of them collide, that is half a millisecond

# Times the bytes of all arrays beside the document. Big bytes are copied out of theirs once; sparse
# arrays read their parts and copy some, and many of them may share one array of indices.
COPIES: Final = 8
LOOKS: Final = 100
BYTES_AT_LEAST: Final = 2**20


@final
class Allowance:
    """Counts what is spent on one document, those inside its exceptions included.

    Args:
        limits: Of the message.
        clock: The processor time of this thread, in seconds.
    """

    __slots__ = ("_array_bytes", "_clock", "_copied", "_elements", "_keys", "_limits", "_looked",
                 "_seconds")  # fmt: skip

    def __init__(self, limits: DecodeLimits, clock: Callable[[], float] = time.thread_time) -> None:
        self._limits = limits
        self._clock = clock
        self._elements = self._array_bytes = self._copied = self._looked = self._keys = 0
        self._seconds = 0.0

    def beside(self, externals: Sequence[object]) -> None:
        """Hears of what stands beside a document that is to be read."""
        arrays = (each for each in externals if type(each) is np.ndarray)
        self._array_bytes += sum(array.nbytes for array in arrays)

    def count(self, items: list[Any] | dict[Any, Any]) -> None:
        """Hears of a container that is complete.

        Raises:
            DecodeError: Its items are too many.
        """
        self._elements += len(items)
        if self._elements > self._limits.elements:
            raise too_many_elements(self._limits)

    def fill(self, add: Callable[[Iterable[Any]], object], keys: Sequence[Any]) -> None:
        """Adds keys to a set or dict, a few at a time.

        Args:
            add: Takes some of them.
            keys: All of them, or pairs that begin with them.

        Raises:
            DecodeError: They collide.
        """
        for start in range(0, len(keys), FEW_KEYS):
            began = self._clock()
            some = keys[start : start + FEW_KEYS]
            add(some)
            self._keys += len(some)
            self._seconds += self._clock() - began
            if self._seconds > SECONDS_AT_LEAST + self._keys * SECONDS_PER_KEY:
                raise DecodeError(
                    f"keys that collide: {self._keys} of a set or dict took {self._seconds:.2f} s"
                )

    def copies(self, array: np.ndarray[Any, Any]) -> None:
        """Hears that the bytes of an array beside the document are copied into a value.

        Raises:
            DecodeError: That happens too often.
        """
        self._copied += array.nbytes
        if self._copied > COPIES * self._array_bytes + BYTES_AT_LEAST:
            raise DecodeError("an array that stands for the bytes of many values")

    def looks(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Hears that arrays beside the document are read from one end to the other.

        Raises:
            DecodeError: That happens too often.
        """
        self._looked += sum(array.nbytes for array in arrays)
        if self._looked > LOOKS * self._array_bytes + BYTES_AT_LEAST:
            raise DecodeError("an array that is part of too many sparse arrays")
