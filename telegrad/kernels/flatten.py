"""Copies of many arrays into one buffer and back, scaled and cast on the way; buckets use them.

NumPy arrays take one pass over the memory, CuPy arrays one launch of `cuda/flatten.cu`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from telegrad.arrays import check_devices, device_of, is_cupy, namespace, views_of
from telegrad.kernels.cuda import Kernel, Table, all_contiguous, blocks_for
from telegrad.types import Array, Shape

_KERNEL: Final = Kernel("flatten", "flatten")
_WORDS: Final = {
    1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long", 16: "Pair"
}  # fmt: skip
_ALONE: Final = (np.float32, np.float64)  # CuPy rounds their products as the kernel does
_SHORT: Final = ("float32", "float16", "bfloat16")


def flatten(
    arrays: Sequence[Array],
    *,
    scale: float | Array = 1.0,
    dtype: Any = None,
    out: Array | None = None,
) -> Array:
    """Returns the items of all arrays, one array after the other in C order, times `scale`.

    Args:
        arrays: At least one array; all of one dtype and on one device.
        scale: The factor of each item, or an array without axes that holds it.
        dtype: The dtype of the result; None for that of the arrays.
        out: An array of one axis that receives the items; None makes a new one.

    Raises:
        ValueError: No arrays, several dtypes or devices, an array that is misaligned, or an
            `out` of the wrong size or dtype.

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
    exact = arrays[0].dtype if dtype is None else np.dtype(dtype)
    size = sum([array.size for array in arrays])
    buffer: Any = namespace(arrays[0]).empty(size, dtype=exact) if out is None else out
    if buffer.shape != (size,) or buffer.dtype != exact:
        raise ValueError(
            f"out has shape {buffer.shape} and dtype {buffer.dtype}; ({size},) and {exact} needed"
        )
    # A table of addresses takes longer than CuPy's own function for one array.
    alone = len(arrays) == 1 and type(scale) is float and arrays[0].dtype == exact
    alone = alone and (scale == 1.0 or exact in _ALONE)
    if not alone and is_cupy(buffer) and _launched(arrays, buffer, scale):
        return buffer
    xp = namespace(buffer)
    for part, array in zip(views_of(buffer, [x.shape for x in arrays]), arrays, strict=True):
        if type(scale) is float and scale == 1.0:
            part[...] = array
        else:
            xp.multiply(array, scale, out=part, casting="unsafe")
    return buffer  # type: ignore[no-any-return]


def unflatten(
    buffer: Array, shapes: Sequence[Shape], *, scale: float = 1.0, dtype: Any = None
) -> list[Array]:
    """Returns arrays of `shapes` with the items of `buffer`, times `scale`.

    The arrays are views into one new buffer; none shares memory with `buffer`.

    Args:
        buffer: An array of one axis, as `flatten` returned it.
        shapes: The shapes of the arrays; together they have as many items as `buffer`.
        scale: The factor of each item.
        dtype: The dtype of the arrays; None for that of `buffer`.

    Raises:
        ValueError: The shapes do not add up to the size of `buffer`.
    """
    size = sum(map(math.prod, shapes))
    if buffer.shape != (size,):
        raise ValueError(f"a buffer of shape {buffer.shape} does not have {size} items")
    return views_of(flatten([buffer], scale=scale, dtype=dtype), shapes)


def scaled(arrays: Sequence[Array], factor: float | Array) -> list[Array]:
    """Returns new arrays: each times `factor`, in its own dtype.

    Args:
        arrays: Arrays of any dtypes and devices.
        factor: A number, or an array without axes that holds it, on the device of all arrays.

    >>> scaled([np.array([1.0, 2.0]), np.array(3, np.float32)], 0.5)
    [array([0.5, 1. ]), array(1.5, dtype=float32)]
    """
    made: dict[int, Array] = {}
    alike: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        alike.setdefault((array.dtype, device_of(array)), []).append(i)
    for places in alike.values():
        some = [arrays[i] for i in places]
        views = views_of(flatten(some, scale=factor), [array.shape for array in some])
        made.update(zip(places, views, strict=True))
    return [made[i] for i in range(len(arrays))]


def _launched(arrays: Sequence[Any], buffer: Any, scale: Any) -> bool:
    """Copies CuPy arrays by the kernel; returns False and copies nothing if it refuses them."""
    kinds = [arrays[0].dtype, buffer.dtype]
    factor, more = (1.0, scale) if is_cupy(scale) else (float(scale), None)
    if more is None and factor == 1.0 and kinds[0] == kinds[1]:
        word = _WORDS[buffer.itemsize]
        define: dict[str, Any] = {"FROM": word, "TO": word, "REAL": "float", "CAST": 0}
    elif any(kind.kind in "bc" for kind in kinds):
        return False
    else:
        real = "double" if any(kind.name not in _SHORT for kind in kinds) else "float"
        define = {"FROM": kinds[0], "TO": kinds[1], "REAL": real, "CAST": 1}
    with buffer.device:
        table = Table([x.size for x in arrays], arrays=all_contiguous(arrays), out=buffer)
        blocks = blocks_for(table.blocks, 1)
        define["MORE"] = "float" if more is None else more.dtype
        _KERNEL.launch(table, factor, more, blocks=blocks, **define)
    return True
