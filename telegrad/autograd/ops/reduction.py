"""Sums, means, extrema, matrix products, softmax and cross entropy with their gradient rules.

The gradient of an extremum is divided equally among the items that are equal to it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad import kernels
from telegrad.arrays import array_beside, reduction_twin
from telegrad.autograd.extend import numpy_function, primitive
from telegrad.autograd.ops.elementwise import where
from telegrad.autograd.ops.shape import (
    count,
    kept,
    masked,
    reshape,
    shared,
    spread,
    to_winners,
    turned,
)
from telegrad.autograd.tensor.tensor import Tensor, array_of
from telegrad.types import Shape


def _average(g: Any, shape: Shape, axis: Any, where: Any) -> Any:
    # With `where`, each result has its own count, which keeps the reduced axes as `kept` does.
    return masked(
        spread(shared(kept(g, shape, axis), count(shape, axis, where)), shape, axis),
        where,
    )


_OVER: Final = {"axis": None, "keepdims": False}
_TYPED: Final = {**_OVER, "dtype": None}
_BOUNDED: Final = {**_OVER, "initial": None}
_H: Final = "holomorphic"

# fmt: off
reduce_sum = numpy_function(np.sum, "a", arrays="where", kernels={"cupy": reduction_twin("sum")},
                            options={**_TYPED, "initial": 0}, complex_rule=_H,
                            a=lambda g, shape, axis, where: masked(spread(g, shape, axis), where))
mean       = numpy_function(np.mean, "a", arrays="where", kernels={"cupy": reduction_twin("mean")},
                            options=_TYPED, complex_rule=_H, a=_average)
reduce_max, reduce_min, *_ = (
    numpy_function(function, "a", arrays="where", kernels={"cupy": reduction_twin(name)},
                   options=_BOUNDED, a=to_winners)
    for function, name in {
        np.max: "max", np.min: "min", np.amax: "max", np.amin: "min", np.nanmax: "nanmax",
        np.nanmin: "nanmin"}.items())
# fmt: on


# -- matrix products -----------------------------------------------------------------------------
#
# In `a @ b`, a vector on the left is a row and a vector on the right is a column, and the product
# lacks the axis that was added. The rules put that axis back and multiply matrices. They leave
# batch axes in the gradient; the node sums them.


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


def _left(g: Any, x1: Any, x2: Any) -> Any:
    if x1.ndim == x2.ndim == 2:
        return g @ x2.T
    return _matrix(g, x1, x2) @ turned(_column(x2))


def _right(g: Any, x1: Any, x2: Any) -> Any:
    if x1.ndim == x2.ndim == 2:
        return x1.T @ g
    product = turned(_row(x1)) @ _matrix(g, x1, x2)
    return reshape(product, to=product.shape[:-1]) if x2.ndim == 1 else product


# fmt: off
matmul = numpy_function(np.matmul, "x1 x2", complex_rule="holomorphic", x1=_left, x2=_right)
# fmt: on


# -- softmax and cross entropy over the last axis, computed by the kernels -----------------------


def _cross_entropy(a: Any, labels: Any, *, mean: bool = False, **how: Any) -> Any:
    losses = kernels.cross_entropy(a, labels, **how)
    return losses.mean() if mean else losses


def _turn(g: Any, y: Any) -> Any:
    """Returns the gradient of logits whose softmax is `y`."""
    if not isinstance(g, Tensor) and not isinstance(y, Tensor):
        return kernels.softmax_gradient(g, y)
    return y * (g - reduce_sum(g * y, axis=-1, keepdims=True))


def _turn_logarithm(g: Any, y: Any) -> Any:
    if not isinstance(g, Tensor) and not isinstance(y, Tensor):
        return kernels.log_softmax_gradient(g, y)
    return g - np.exp(y) * reduce_sum(g, axis=-1, keepdims=True)


def _distance(a: Any, labels: Any) -> Any:
    """Returns softmax minus one-hot."""
    return softmax(a) - kernels.one_hot(array_of(labels), classes=a.shape[-1], dtype=a.dtype)


def _counted(a: Any, labels: Any, ignored: int) -> Any:
    """Returns a mask of the labels that count."""
    labels = array_beside(array_of(labels), array_of(a))
    return (labels != ignored) & (labels >= 0) & (labels < a.shape[-1])


def _of_losses(g: Any, a: Any, labels: Any, factor: Any = None, ignored: int | None = None) -> Any:
    """Returns the gradient of logits from that of their losses, times `factor`."""
    if isinstance(g, Tensor) or isinstance(a, Tensor):
        g = g if factor is None else g * factor
        if ignored is not None:  # the scores of labels that do not count may be NaN
            counted = _counted(a, labels, ignored)
            g, a = where(counted, g, 0.0), where(counted[..., None], a, 0.0)
        return g[..., None] * _distance(a, labels)
    return kernels.cross_entropy_gradient(g, a, labels, factor=factor, ignored=ignored)


_LOSS: Final = {"mean": False, "checked": False, "ignored": None}

# fmt: off
softmax       = primitive("softmax",     kernels.softmax,     "a", a=_turn)
log_softmax   = primitive("log_softmax", kernels.log_softmax, "a", a=_turn_logarithm)
cross_entropy = primitive(
    "cross_entropy", _cross_entropy, "a labels", arrays="found", options=_LOSS,
    a=lambda g, a, labels, mean, ignored:
        _of_losses(g / math.prod(a.shape[:-1]) if mean else g, a, labels, ignored=ignored))
mean_cross_entropy = primitive(
    "mean_cross_entropy", kernels.mean_cross_entropy, "a labels", arrays="found",
    outputs="y factor", options={"ignored": None},
    a=lambda g, a, labels, factor, ignored:
        _of_losses(g[0], a, labels, array_of(factor), ignored))
# fmt: on
