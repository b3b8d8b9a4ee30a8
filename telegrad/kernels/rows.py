"""Sums of rows that go to the same row of a table: the gradient of an embedding.

On a GPU one launch does it (`cuda/rows.cu`), without a sort, and always in the same order.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.arrays import (
    add_at,
    check_devices,
    is_cupy,
    is_floating,
    namespace,
)
from telegrad.kernels.cuda import Kernel, contiguous
from telegrad.types import Array, Shape

_KERNEL: Final = Kernel("rows", "add_rows")
_BLOCKS: Final = 512
_COLUMNS: Final = 1024  # of a block, in float32
_NONE: Final = -(1 << 63)


def add_rows(values: Array, rows: Array, shape: Shape, *, ignored: int | None = None) -> Array:
    """Returns a table in which row r is the sum of the values whose number is r, and 0 elsewhere.

    Args:
        values: One array per number: shape (*rows.shape, *shape[1:]).
        rows: Numbers of rows of the table: integers of any shape, from 0.
        shape: The shape of the table, with at least one axis.
        ignored: A number whose values are left out.

    Returns:
        The table, in the dtype of `values`. Sums of float16 and bfloat16 are computed in float32; a
        GPU rounds them after some 256 values each. There numbers outside of the table count from
        its end, or from its beginning again.

    Raises:
        IndexError: A number names no row (NumPy arrays).
        ValueError: The shapes do not fit, or the arrays are on different devices.

    >>> add_rows(np.array([[1.0], [2.0], [4.0]]), np.array([2, 0, 2]), (3, 1)).tolist()
    [[2.0], [0.0], [5.0]]
    """
    if values.shape != (*rows.shape, *shape[1:]):
        raise ValueError(
            f"values of shape {values.shape} do not fit rows of shape {rows.shape} of a table of "
            f"shape {shape}"
        )
    check_devices("sums of rows", values, rows)
    if is_cupy(values) and is_floating(values.dtype):
        return _launched(values, rows, shape, ignored)
    xp = namespace(values)
    table: Any = xp.zeros(shape, values.dtype)
    if ignored is not None:
        kept = (rows != ignored).reshape(*rows.shape, *(1,) * (len(shape) - 1))
        # A product would make NaN of infinities.
        values = xp.where(kept, values, xp.zeros((), values.dtype))
    add_at(table, rows, values)
    return table  # type: ignore[no-any-return]


def _launched(values: Any, rows: Any, shape: Shape, ignored: int | None) -> Array:
    with values.device:
        table: Array = namespace(values).zeros(shape, values.dtype)
        width = math.prod(shape[1:])
        if table.size and rows.size:
            numbers = contiguous(rows).astype(np.int64, copy=False)
            sizes = (rows.size, len(table), width, _NONE if ignored is None else ignored)
            grid = (min(_BLOCKS, len(table), rows.size), -(-width // _COLUMNS))
            how: Any = {"blocks": grid, "ITEM": values.dtype}
            _KERNEL.launch(contiguous(values), numbers, table, *sizes, **how)
    return table
