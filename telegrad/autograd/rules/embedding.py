"""Rows of a table, chosen by integers; their gradient is dense, or `RowSparse` where asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import array_beside, namespace
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.ops import scatter
from telegrad.autograd.row_sparse import RowSparse
from telegrad.autograd.tensor import Tensor
from telegrad.types import Array, Shape

__all__ = ["embedding"]


def _rows_of(weight: Any, *, indices: Any, padding_idx: Any, sparse: bool) -> Array:
    rows: Array = weight[indices]
    return rows


def _kept(g: Any, indices: Array, padding_idx: int | None) -> Any:
    """`g` with zeros where `indices` name the row that is not trained."""
    if padding_idx is None:
        return g
    present = (indices != padding_idx).reshape(*indices.shape, *(1,) * (g.ndim - indices.ndim))
    return g * present


def _of_rows(g: Any, indices: Array, shape: Shape, padding_idx: int | None, sparse: bool) -> Any:
    g = _kept(g, indices, padding_idx)
    if not sparse or isinstance(g, Tensor):
        return scatter(g, index=indices, into=shape)
    rows = indices.ravel()
    values = g.reshape(rows.size, *shape[1:])
    if padding_idx is not None:
        kept = rows != padding_idx
        rows, values = rows[kept], values[kept]
    return RowSparse(rows, values, shape)


# fmt: off
_choose: Operation = primitive(
    "embedding", _rows_of, "weight", complex_rule="own", options={"indices": (), "padding_idx": None, "sparse": False},
    weight=lambda g, shape, indices, padding_idx, sparse: _of_rows(g, indices, shape, padding_idx, sparse))
# fmt: on


def embedding(
    weight: Any, indices: Any, *, padding_idx: int | None = None, sparse: bool = False
) -> Any:
    """Returns the rows of `weight` that `indices` name.

    Args:
        weight: An array or Tensor with at least one axis, the table.
        indices: Integers from 0, of any shape: an array, a Tensor, a list.
        padding_idx: A row that gets no gradient.
        sparse: Makes the gradient of a leaf a `RowSparse`, as long as that is not recorded
            (`create_graph`). One that goes on to an operation is an array.

    Returns:
        Shape `(*indices.shape, *weight.shape[1:])`, in the dtype of `weight`.

    Raises:
        TypeError: `indices` are no integers.
        IndexError: One of them names no row. On a GPU that is not looked for.

    >>> from telegrad.autograd import tensor
    >>> table = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> embedding(table, [1, 1, 0], sparse=True).sum().backward()
    >>> table.grad
    RowSparse(rows=[1 1 0], shape=(2, 2), dtype=float64)
    """
    chosen = _checked(indices, weight.data if isinstance(weight, Tensor) else weight)
    if padding_idx is not None and padding_idx < 0:
        padding_idx += len(weight)
    if not isinstance(weight, Tensor):
        return _rows_of(weight, indices=chosen, padding_idx=padding_idx, sparse=sparse)
    with weight.steady():
        return _choose(weight, indices=chosen, padding_idx=padding_idx, sparse=sparse)


def _checked(indices: Any, table: Array) -> Array:
    """Returns a copy of `indices`, for the gradient needs them as they are now."""
    given = indices.data if isinstance(indices, Tensor) else indices
    given = array_beside(given, table)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"rows are named by integers, not by {given.dtype}")
    chosen: Array = namespace(given).array(given, dtype=np.int64)
    if namespace(chosen) is np and chosen.size:
        low, high = int(chosen.min()), int(chosen.max())
        if low < 0 or high >= len(table):
            raise IndexError(
                f"rows from {low} to {high} of a table with rows from 0 to {len(table) - 1}"
            )
    return chosen
