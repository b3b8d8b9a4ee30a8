"""Row-sparse gradients on their way through a reduction: packed rows, and their mean.

    rank 0   rows 3 17   ─┐                     ┌─ rows 3 17 40, each the sum over ranks / n
    rank 1   rows 17 40  ─┼─ two all_gathers ─▶ ┤  bitwise equal on every rank
    rank 2   no gradient ─┘                     └─

A rank sends its rows and their values, each row once. A rank with a dense gradient sends all rows
and says so; the mean is then an array on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from telegrad.arrays import namespace, to_host
from telegrad.autograd import RowSparse, is_row_sparse
from telegrad.types import Array, Shape

__all__ = ["mean_of_rows", "pack_rows"]

# The first item of the packed rows.
_NONE, _ROWS, _WHOLE = range(3)


def pack_rows(gradient: Any, shape: Shape, dtype: np.dtype[Any], xp: Any) -> tuple[Array, Array]:
    """Returns the rows of one rank's gradient, after an item for their kind, and their values.

    Args:
        gradient: A RowSparse, an array, or None.
        shape: The shape of the whole gradient.
        dtype: The dtype of the values.
        xp: The namespace of the values, `numpy` or `cupy`.

    Returns:
        Integers of shape (rows + 1,) on the host, and values of shape (rows, *shape[1:]).

    >>> gradient = RowSparse(np.array([2, 0, 2]), np.array([[1.0], [2.0], [3.0]]), (3, 1))
    >>> rows, values = pack_rows(gradient, (3, 1), np.dtype(float), np)
    >>> rows.tolist(), values.tolist()
    ([1, 0, 2], [[2.0], [4.0]])
    """
    if gradient is None:
        return np.array([_NONE], np.int64), xp.zeros((0, *shape[1:]), dtype)
    if not is_row_sparse(gradient):
        return np.array([_WHOLE, *range(shape[0])], np.int64), xp.ascontiguousarray(gradient)
    once = gradient.coalesce()
    rows = to_host(once.rows).astype(np.int64)
    return np.concatenate([np.array([_ROWS], np.int64), rows]), once.values


def mean_of_rows(
    rows: Sequence[Array], values: Sequence[Array], shape: Shape
) -> RowSparse | Array | None:
    """Returns the mean of the gradients that all ranks have packed; None if no rank has one.

    The values are added in the order of the ranks, so the mean is the same on every rank.

    >>> one = np.array([_ROWS, 1]), np.array([[4.0]])
    >>> two = np.array([_ROWS, 0, 1]), np.array([[2.0], [6.0]])
    >>> mean = mean_of_rows(*zip(one, two), (3, 1))
    >>> mean, mean.values.tolist()
    (RowSparse(rows=[0 1], shape=(3, 1), dtype=float64), [[1.0], [5.0]])
    """
    kinds = {int(each[0]) for each in rows}
    if kinds == {_NONE}:
        return None
    xp = namespace(values[0])
    places = xp.asarray(np.concatenate([each[1:] for each in rows]))
    total = RowSparse(places, xp.concatenate(list(values)), shape).coalesce()
    mean: RowSparse = total / len(rows)
    return mean.to_dense() if _WHOLE in kinds else mean
