"""Arrays of users as flat host arrays, and flat host arrays as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import copy_into, is_array, is_cupy, to_host
from telegrad.errors import DecodeError
from telegrad.types import Array, Shape
from telegrad.wire import Buffer, copy_of

__all__ = ["Staged", "as_bytes", "check_array", "from_bytes"]


def check_array(verb: str, array: object, *, written: bool) -> Array:
    """Returns `array` if a collective operation can use it.

    Args:
        verb: Which, for the error.
        array: What the user gave.
        written: Whether the operation writes into it.

    Raises:
        TypeError: It is no array, or not one of plain items.
        ValueError: It is read-only and would be written.
    """
    if not is_array(array):
        raise TypeError(
            f"{verb} takes a NumPy or CuPy array, not {type(array).__name__}; "
            "of a Tensor pass tensor.data, of numbers np.array(numbers)"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{verb} does not take a masked array; pass array.data, or the filled one")
    if array.dtype.hasobject:
        raise TypeError(f"{verb} takes arrays of plain items, not of dtype {array.dtype}")
    if written and not is_cupy(array) and not array.flags.writeable:
        raise ValueError(f"{verb} writes into its array, and this one is read-only; pass a copy")
    return array


class Staged:
    """A user's array as the algorithms see it: on the host, flat, contiguous.

    It is the array's own memory where that is so already, else a copy made here and now.

    Args:
        array: Of any strides, on any device.

    Attributes:
        flat: Of shape (array.size,).
    """

    def __init__(self, array: Array) -> None:
        self._array = array
        host = to_host(array)
        self._shared = host is array and bool(host.flags.c_contiguous)
        self.flat: Array = np.ascontiguousarray(host).reshape(-1)

    def write_back(self) -> None:
        """Sees to it that the user's array has the values of `flat`."""
        if not self._shared:
            copy_into(self._array, self.flat.reshape(self._array.shape))


def as_bytes(flat: Array) -> Buffer:
    """Returns the bytes of a contiguous array, not copied.

    >>> as_bytes(np.array([1, 2], np.int16)).nbytes
    4
    """
    octets: Any = flat.reshape(-1).view(np.uint8)
    return memoryview(octets)


def from_bytes(data: Buffer, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Returns a writable array over bytes that arrived.

    Raises:
        DecodeError: They are too few or too many.

    >>> from_bytes(bytearray(4), np.dtype(np.int16), (2,))
    array([0, 0], dtype=int16)
    """
    view = memoryview(data)
    if view.nbytes != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise DecodeError(f"{view.nbytes} bytes arrived for an array of shape {shape} and {dtype}")
    if view.readonly:
        view = memoryview(copy_of(view))
    return np.ndarray(shape, dtype, view)
