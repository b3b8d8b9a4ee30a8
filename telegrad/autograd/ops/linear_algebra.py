"""Matrix products, with their gradient rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.autograd.extend import numpy_function
from telegrad.autograd.ops.shape import reshape, swapaxes

__all__ = ["matmul"]

# `a @ b` with a vector on the left is a row, on the right a column, and the product has lost that
# axis. The rules put it back, multiply matrices, and leave batch axes to the node, which sums.


def _row(a: Any) -> Any:
    return reshape(a, to=(1, *a.shape)) if a.ndim == 1 else a


def _column(b: Any) -> Any:
    return reshape(b, to=(*b.shape, 1)) if b.ndim == 1 else b


def _matrix(g: Any, a: Any, b: Any) -> Any:
    shape = g.shape
    if b.ndim == 1:
        shape = (*shape, 1)
    if a.ndim == 1:
        shape = (*shape[:-1], 1, shape[-1])
    return reshape(g, to=shape)


def _turned(a: Any) -> Any:
    return swapaxes(a, axis1=-1, axis2=-2)


def _left(g: Any, x1: Any, x2: Any) -> Any:
    if x1.ndim == x2.ndim == 2:
        return g @ x2.T
    return _matrix(g, x1, x2) @ _turned(_column(x2))


def _right(g: Any, x1: Any, x2: Any) -> Any:
    if x1.ndim == x2.ndim == 2:
        return x1.T @ g
    product = _turned(_row(x1)) @ _matrix(g, x1, x2)
    return reshape(product, to=product.shape[:-1]) if x2.ndim == 1 else product


# fmt: off
matmul = numpy_function(np.matmul, "x1 x2", complex_rule="holomorphic", x1=_left, x2=_right)
# fmt: on
