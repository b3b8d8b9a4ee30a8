"""Tests that tell NumPy arrays, CuPy arrays and other objects apart without importing CuPy.

A CuPy array can only exist where something has imported `cupy`. A look into `sys.modules` is
therefore enough, and a machine without a GPU never pays for the import.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, TypeGuard

import numpy as np

from telegrad.types import Array, DTypeLike

UNREGISTERED: Final = 0
"""cudaMemoryTypeUnregistered: host memory that CUDA does not know."""

_LOADED: Final = sys.modules  # a name of this module, because most operations look here


def is_cupy(value: object) -> TypeGuard[Array]:
    """Returns True if `value` is a CuPy array."""
    cupy = _LOADED.get("cupy")
    return cupy is not None and isinstance(value, cupy.ndarray)


def owns_memory(array: Any) -> bool:
    """Returns True if a CuPy array's memory is of CuPy's pool, and not lent by another library."""
    return type(array.data.mem).__name__ == "PooledMemory"


def has_cupy() -> bool:
    """Returns True if this process has imported CuPy, so that there may be arrays on GPUs."""
    return "cupy" in _LOADED


def is_array(value: object) -> TypeGuard[Array]:
    """Returns True if `value` is a NumPy or CuPy array.

    NumPy scalars (`np.float32(1)`) are not arrays.

    >>> is_array(np.zeros(3)), is_array([0, 0, 0])
    (True, False)
    """
    return isinstance(value, np.ndarray) or is_cupy(value)


def namespace(*values: object) -> Any:
    """Returns the module for `values`: `cupy` if one of them is a CuPy array, else `numpy`."""
    cupy = _LOADED.get("cupy")
    if cupy is not None:
        for value in values:  # each launch of a kernel comes by here
            if isinstance(value, cupy.ndarray):
                return cupy
    return np


def takes_ufuncs(value: object) -> bool:
    """Returns True if the library of `value` computes NumPy's ufuncs itself: pandas, xarray.

    >>> takes_ufuncs(np.zeros(3)), takes_ufuncs([0, 0, 0])
    (False, False)
    """
    if isinstance(value, (np.ndarray, np.generic)) or is_cupy(value):
        return False
    return getattr(type(value), "__array_ufunc__", None) is not None


def _on_gpu(value: object) -> bool:
    """Returns True if `value` is a GPU array of any library."""
    return getattr(value, "__cuda_array_interface__", None) is not None


def is_floating(dtype: DTypeLike) -> bool:
    """Returns True if `dtype` holds real floating-point numbers, those of ml_dtypes included.

    >>> is_floating(np.float32), is_floating(np.int64)
    (True, False)
    """
    exact = np.dtype(dtype)
    if exact.kind == "f":
        return True
    return exact.kind == "V" and exact.name.startswith(("bfloat", "float"))


def computing_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype for sums and variances of numbers of `dtype`: float32 for shorter floats.

    It has the machine's byte order, as NumPy's functions take no other one for `dtype=`.

    >>> computing_dtype(np.float16), computing_dtype(">f8")
    (dtype('float32'), dtype('float64'))
    """
    exact = np.dtype(dtype)
    if exact.itemsize < 4 and is_floating(exact):
        return np.dtype(np.float32)
    return exact if exact.isnative else exact.newbyteorder("=")


def is_inexact(dtype: DTypeLike) -> bool:
    """Returns True if `dtype` can have gradients: real floating-point or complex numbers.

    >>> is_inexact(np.complex64), is_inexact(np.int64)
    (True, False)
    """
    exact = np.dtype(dtype)
    return exact.kind in "fc" or is_floating(exact)


def as_array(value: object, *, dtype: DTypeLike | None = None) -> Array:
    """Returns `value` as an array, without a copy if it already is an array of that dtype.

    Args:
        value: An array, a scalar, or nested sequences of numbers.
        dtype: The wanted dtype, or None for the dtype of `value`.

    Returns:
        A CuPy array if `value` is a CuPy array or has a CUDA array interface, else a NumPy array
        (0-d for a scalar).

    Raises:
        ImportError: `value` is on a GPU and CuPy is not installed.
        TypeError: `value` holds something that is not a number.
        ValueError: `value` says that it is on a GPU, and no GPU can read its memory; or its items
            are misaligned there.
    """
    if type(value) is np.ndarray and dtype is None and value.dtype.kind in "fiubc":
        return value
    if type(value) is not np.ndarray and isinstance(value, np.ndarray) and hasattr(value, "mask"):
        raise TypeError("masked arrays are not supported; pass x.filled(value)")
    xp = namespace(value)
    if xp is np and not isinstance(value, np.ndarray) and _on_gpu(value):
        xp = importlib.import_module("cupy")
        _check_readable(value, xp)
    array: Array = xp.asarray(value, dtype=dtype)
    if xp is not np:
        _check_aligned(array)
    if array.dtype.kind in "OSU":
        raise TypeError(
            f"not an array of numbers: {type(value).__name__} (as an array its dtype is "
            f"{array.dtype}); pass an array or nested lists of numbers of one shape"
        )
    return array


def _check_readable(value: Any, cupy: Any) -> None:
    """Raises ValueError if memory that another library exports cannot be read by a GPU.

    A kernel that reads it would end the work of the whole process on that GPU.
    """
    pointer = value.__cuda_array_interface__["data"][0]
    if not pointer:  # an array without items
        return
    memory = cupy.cuda.runtime.pointerGetAttributes(pointer)
    # The current GPU alone has a pointer for it; memory of another GPU is known by its type.
    if not memory.devicePointer and memory.type == UNREGISTERED:
        raise ValueError(
            f"a {type(value).__name__} says that it is on a GPU, and its address {pointer:#x} is "
            "in host memory that no GPU reads; pass it as a NumPy array"
        )


def _check_aligned(array: Any) -> None:
    """Raises ValueError for an address that GPUs cannot read; a kernel there ends all work, too."""
    items = array.dtype.alignment
    if items > 1 and (array.data.ptr % items or any(step % items for step in array.strides)):
        raise ValueError(
            f"an array of {array.dtype} on a GPU is misaligned: its items lie at "
            f"{array.data.ptr:#x} and in steps of {array.strides} bytes, not at multiples of "
            f"{items}; copy its bytes to an array of uint8, and view that"
        )
