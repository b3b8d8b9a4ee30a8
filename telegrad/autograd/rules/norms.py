"""Norms of vectors and matrices, each with its gradient rule.

Where a norm has a kink its gradient is one-sided or shared: 0 at the zero vector and for items that
are 0, shared equally by items or singular values that are equally large. Order 0 counts: constant.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import constants, numpy_function
from telegrad.autograd.ops import absolute, reshape, sign
from telegrad.autograd.ops import where as choose
from telegrad.autograd.ops.axes import axes_of, kept, to_winners

__all__: list[str] = []


def _fraction(x: Any, y: Any) -> Any:
    """Returns `x / y`, 0 where `y` is 0."""
    zero = y == 0
    return choose(zero, 0.0, x / choose(zero, 1.0, y))


def _to_extreme(g: Any, sizes: Any, axis: Any, order: float) -> Any:
    # Their own extreme, not the norm: computed otherwise, that may differ in the last digit.
    extreme = np.max if order > 0 else np.min
    return to_winners(g, extreme(sizes, axis=axis, keepdims=True), sizes, axis)


def _of_vector(g: Any, y: Any, x: Any, order: Any, axis: Any) -> Any:
    """The gradient of a norm over all items of `axis`, one or several."""
    if order == 0:
        return None
    if abs(order) == math.inf:
        return sign(x) * _to_extreme(g, absolute(x), axis, order)
    g, y = kept(g, x.shape, axis), kept(y, x.shape, axis)
    if order == 1:
        return g * sign(x)
    if order == 2:
        return x * _fraction(g, y)
    size = absolute(x)
    # In fractions of the norm, so that no power overflows; sign is 0 where an item is.
    zero = (size == 0) | (y == 0)
    ratio = choose(zero, 1.0, size / choose(y == 0, 1.0, y))
    return choose(zero, 0.0, g * sign(x) * ratio ** (order - 1))


def _of_matrix(g: Any, y: Any, x: Any, order: Any, axes: tuple[int, int]) -> Any:
    """The gradient of a norm of the matrices in `axes`."""
    if order is None or order == "fro":
        return _of_vector(g, y, x, 2, axes)
    if order in (1, -1, math.inf, -math.inf):
        summed, other = axes if abs(order) == 1 else axes[::-1]
        sums = np.sum(absolute(x), axis=summed, keepdims=True)
        return sign(x) * _to_extreme(kept(g, x.shape, axes), sums, other, order)
    matrices = np.moveaxis(x, axes, (-2, -1))
    left, values, right = np.linalg.svd(matrices, full_matrices=False)
    g = _of_values(g, x, axes)
    weights = g if order == "nuc" else _to_extreme(g, values, -1, order)
    weights = choose(values == 0, 0.0, weights)
    return np.moveaxis(left * weights[..., None, :] @ right, (-2, -1), axes)


def _of_values(g: Any, x: Any, axes: tuple[int, int]) -> Any:
    """Gives one number per matrix the axis of the singular values."""
    return reshape(g, to=(*[n for k, n in enumerate(x.shape) if k not in axes], 1))


def _of_norm(g: Any, y: Any, x: Any, order: Any, axis: Any) -> Any:
    axes = axes_of(axis, x.ndim)
    matrix = len(axes) == 2 and (order is not None or axis is not None)
    if matrix:
        return _of_matrix(g, y, x, order, (axes[0], axes[1]))
    return _of_vector(g, y, x, 2 if order is None else order, axes)


# CuPy has neither of these two before its version 14.


def _vector_norm_there(x: Any, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:  # noqa: A002
    axes = axes_of(axis, x.ndim)
    rest = tuple([k for k in range(x.ndim) if k not in axes])
    size = math.prod([x.shape[k] for k in axes])
    flat = x.transpose((*rest, *axes)).reshape((*[x.shape[k] for k in rest], size))
    found = np.linalg.norm(flat, ord, -1)
    return kept(found, x.shape, axes) if keepdims else found


def _matrix_norm_there(x: Any, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002
    return np.linalg.norm(x, ord, (-2, -1), keepdims)


_ANY: Final = {"ord": None, "axis": None, "keepdims": False}

# fmt: off
norm        = numpy_function(np.linalg.norm,        "x", complex_rule="own", options=_ANY, x=lambda g, y, x, ord, axis: _of_norm(g, y, x, ord, axis))  # noqa: A006  NumPy's name
vector_norm = numpy_function(np.linalg.vector_norm, "x", kernels={"cupy": _vector_norm_there}, complex_rule="own", options={**_ANY, "ord": 2}, x=lambda g, y, x, ord, axis: _of_vector(g, y, x, ord, axes_of(axis, x.ndim)))  # noqa: A006  NumPy's name
matrix_norm = numpy_function(np.linalg.matrix_norm, "x", kernels={"cupy": _matrix_norm_there}, complex_rule="own", options={"ord": "fro", "keepdims": False}, x=lambda g, y, x, ord: _of_matrix(g, y, x, ord, (x.ndim - 2, x.ndim - 1)))  # noqa: A006  NumPy's name
# fmt: on

constants(np.linalg.matrix_rank)
