"""The Euclidean norm of the items of many arrays, as clipping needs it: two launches on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from telegrad.arrays import check_devices, computing_dtype, is_cupy, namespace
from telegrad.kernels.cuda import Kernel, Table, all_contiguous, blocks_for
from telegrad.types import Array

_PARTS: Final = Kernel("norm", "norm_parts")
_FINISH: Final = Kernel("norm", "norm_finish")


def joint_norm(arrays: Sequence[Array], max_norm: float = math.inf) -> tuple[Array, Array]:
    """Returns the norm of all items together, and the factor that makes it at most `max_norm`.

    Args:
        arrays: At least one array of floating-point numbers, all on one device.
        max_norm: The largest norm; not negative.

    Returns:
        Two arrays without axes, in float64 if an array has that dtype, else in float32. The factor
        is `max_norm / (norm + 1e-6)`, at most 1, and NaN if the norm is. CuPy's are not waited for.

    Raises:
        ValueError: The arrays are on different devices, or one is misaligned.

    >>> norm, factor = joint_norm([np.array([3.0]), np.array([[4.0]])], 2.5)
    >>> float(norm), round(float(factor), 4)
    (5.0, 0.5)
    """
    check_devices("a joint norm", *arrays)
    dtype = np.result_type(*map(computing_dtype, {array.dtype for array in arrays}))
    if is_cupy(arrays[0]):
        return _launched(arrays, dtype, max_norm)
    total = 0.0
    for array in arrays:
        flat: Any = array.ravel().astype(computing_dtype(array.dtype), copy=False)
        total += float(flat @ flat)
    norm = np.array(math.sqrt(total), dtype)
    ratio = max_norm / (norm + 1e-6)
    return norm, np.array(1.0 if ratio >= 1 else ratio, dtype)


def _launched(arrays: Sequence[Any], dtype: Any, max_norm: float) -> tuple[Array, Array]:
    xp = namespace(arrays[0])
    with arrays[0].device:
        tables = []
        for kind in dict.fromkeys([array.dtype for array in arrays]):
            alike = all_contiguous([array for array in arrays if array.dtype == kind])
            table = Table([array.size for array in alike], arrays=alike)
            tables.append((kind, table, blocks_for(table.blocks, 1)))
        parts = xp.empty(sum(blocks for *_, blocks in tables), np.float64)
        start = 0
        for kind, table, blocks in tables:
            of_kind = parts[start : start + blocks]
            _PARTS.launch(table, of_kind, blocks=blocks, ITEM=kind, NORM=dtype)
            start += blocks
        norm, factor = xp.empty((), dtype), xp.empty((), dtype)
        numbers = (start, float(max_norm))
        define = {"ITEM": "float", "NORM": dtype}
        _FINISH.launch(parts, *numbers, norm, factor, blocks=1, threads=1024, **define)
    return norm, factor
