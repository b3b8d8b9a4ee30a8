"""Array contents in host memory, for sockets, files and printing."""

from __future__ import annotations

import numpy as np

from telegrad.arrays.backend import is_cupy
from telegrad.arrays.device import CPU, to_device
from telegrad.types import Array

__all__ = ["host_copy", "to_host"]


def to_host(array: Array) -> Array:
    """Returns `array` as a NumPy array; itself where it already is one, else a copy."""
    return to_device(array, CPU)


def host_copy(array: Array) -> Array:
    """Returns a fresh, writable, C-contiguous NumPy array with the values of `array`.

    A CuPy array is copied once, in the current stream, which is waited for.

    >>> source = np.zeros((2, 3)).T
    >>> copied = host_copy(source)
    >>> copied.flags.c_contiguous, np.shares_memory(copied, source)
    (True, False)
    """
    if is_cupy(array):
        return np.ascontiguousarray(to_host(array)).reshape(array.shape)
    return np.array(array, order="C", copy=True)
