"""`fit`: a gradient in the shape and dtype of what it is the gradient of."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import as_array
from telegrad.autograd.dispatch import call
from telegrad.autograd.node import Edge
from telegrad.autograd.row_sparse import is_row_sparse
from telegrad.autograd.tensor import Tensor
from telegrad.errors import AutogradError
from telegrad.types import Array, Shape

__all__ = ["fit", "sum_over_broadcast"]


def fit(gradient: Any, shape: Shape, dtype: np.dtype[Any], edge: Edge | None = None) -> Any:
    """Returns `gradient` summed over what was broadcast, in `dtype`.

    Of a complex gradient of a real number the real part is taken.

    Args:
        gradient: What a rule gave.
        shape: That of the input that it is the gradient of.
        dtype: That of the input.
        edge: Where it goes. A RowSparse stays one if that is a leaf, or another worker's graph;
            rules get arrays.

    Raises:
        AutogradError: It does not have such a shape.
    """
    if is_row_sparse(gradient):
        if gradient.shape == shape and edge is not None and edge[0].is_end:
            return gradient.astype(dtype, copy=False)
        gradient = gradient.to_dense()
    recorded = isinstance(gradient, Tensor)
    if not recorded:
        gradient = as_array(gradient)
    if gradient.shape != shape:
        by = sum_over_broadcast
        gradient = call(by, gradient, to=shape) if recorded else by(gradient, to=shape)
    if gradient.dtype != dtype:
        if gradient.dtype.kind == "c" and dtype.kind != "c":
            gradient = call(np.real, gradient) if recorded else gradient.real
        gradient = gradient.astype(dtype)
    return gradient


def sum_over_broadcast(a: Array, *, to: Shape) -> Array:
    """Returns `a` summed over the axes that broadcasting shape `to` to its own has added.

    Raises:
        AutogradError: `to` does not broadcast to that shape.
    """
    extra = a.ndim - len(to)
    kept = a.shape[extra:] if extra >= 0 else ()
    if kept == to and extra:  # no axis of length 1 was stretched: a bias
        added: Array = a.sum(axis=tuple(range(extra)))
        return as_array(added)
    if extra < 0 or any(k not in (1, n) for k, n in zip(to, kept, strict=True)):
        raise AutogradError(f"a gradient of shape {a.shape} does not fit an input of shape {to}")
    axes = [extra + k for k, n in enumerate(to) if n == 1]
    total: Array = a.sum(axis=(*range(extra), *axes))
    return as_array(total).reshape(to)
