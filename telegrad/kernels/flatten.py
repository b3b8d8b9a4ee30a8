"""Copies of many arrays into one buffer and back, scaled on the way; gradient buckets use them.

Both functions work on NumPy and CuPy arrays: one pass over the memory, one launch per array on a
GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from telegrad.arrays import check_devices, namespace
from telegrad.types import Array, Shape

__all__ = ["flatten", "unflatten"]


def flatten(arrays: Sequence[Array], *, scale: float = 1.0, out: Array | None = None) -> Array:
    """Returns the items of all arrays, one array after the other in C order, times `scale`.

    Args:
        arrays: At least one array; all of one dtype and on one device.
        scale: The factor of each item.
        out: An array of one axis that receives the items; None makes a new one.

    Raises:
        ValueError: No arrays, several dtypes or devices, or an `out` of the wrong size or dtype.

    >>> import numpy as np
    >>> flatten([np.array([[1.0, 2.0]]), np.array(3.0)], scale=2.0)
    array([2., 4., 6.])
    """
    if not arrays:
        raise ValueError("no arrays to flatten")
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1:
        raise ValueError(f"arrays of one dtype are needed, not {sorted(map(str, dtypes))}")
    check_devices("one buffer", *arrays, out)
    dtype = arrays[0].dtype
    size = sum(array.size for array in arrays)
    xp = namespace(arrays[0])
    buffer: Any = xp.empty(size, dtype=dtype) if out is None else out
    if buffer.shape != (size,) or buffer.dtype != dtype:
        raise ValueError(
            f"out has shape {buffer.shape} and dtype {buffer.dtype}; ({size},) and {dtype} needed"
        )
    offset = 0
    for array in arrays:
        part = buffer[offset : offset + array.size].reshape(array.shape)
        if scale == 1.0:
            part[...] = array
        else:
            xp.multiply(array, scale, out=part, casting="unsafe")
        offset += array.size
    return buffer  # type: ignore[no-any-return]


def unflatten(buffer: Array, shapes: Sequence[Shape], *, scale: float = 1.0) -> list[Array]:
    """Returns arrays of `shapes` with the items of `buffer`, times `scale`.

    The arrays are views into one new buffer; none shares memory with `buffer`.

    Args:
        buffer: An array of one axis, as `flatten` returned it.
        shapes: The shapes of the arrays; together they have as many items as `buffer`.
        scale: The factor of each item.

    Raises:
        ValueError: The shapes do not add up to the size of `buffer`.
    """
    sizes = [math.prod(shape) for shape in shapes]
    if buffer.shape != (sum(sizes),):
        raise ValueError(f"a buffer of shape {buffer.shape} does not have {sum(sizes)} items")
    xp = namespace(buffer)
    scaled: Any = xp.empty_like(buffer)
    if scale == 1.0:
        scaled[...] = buffer
    else:
        xp.multiply(buffer, scale, out=scaled, casting="unsafe")
    arrays: list[Array] = []
    offset = 0
    for shape, size in zip(shapes, sizes, strict=True):
        arrays.append(scaled[offset : offset + size].reshape(shape))
        offset += size
    return arrays
