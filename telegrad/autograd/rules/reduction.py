"""Products, variances and what else reduces axes, each with its gradient rule.

Extrema: items that are equal share the gradient equally. Standard deviation: 0 where it is 0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import reshape, transpose
from telegrad.autograd.ops import where as choose
from telegrad.autograd.ops.axes import axes_of, count, kept, masked, shared, spread, to_winners
from telegrad.autograd.rules.cumulative import others
from telegrad.types import Shape

__all__: list[str] = []


def _distance(a: Any, axis: Any, where: Any) -> Any:
    """How far each item is from the mean, 0 where it was not counted."""
    counted = {} if where is None else {"where": where}
    average = np.mean(a, axis=axis, keepdims=True, **counted)
    return masked(a - average, where)


def _freedom(shape: Shape, axis: Any, where: Any, ddof: Any, correction: Any) -> Any:
    less = ddof if correction is None else correction
    number = count(shape, axis, where) - less
    return max(number, 0) if isinstance(number, (int, float)) else np.maximum(number, 0)


def _of_variance(g: Any, a: Any, axis: Any, where: Any, ddof: Any, correction: Any) -> Any:
    part = shared(kept(g, a.shape, axis), _freedom(a.shape, axis, where, ddof, correction))
    return masked(2 * part * _distance(a, axis, where), where)


def _of_deviation(g: Any, y: Any, a: Any, axis: Any, where: Any, ddof: Any, correction: Any) -> Any:
    still = y == 0
    part = choose(still, 0.0, g / choose(still, 1.0, y))
    return _of_variance(part, a, axis, where, ddof, correction) / 2


def _of_product(g: Any, y: Any, a: Any, axis: Any, where: Any, initial: Any) -> Any:
    if where is not None:
        a = choose(where, a, 1.0)
    if not (y == 0).any():
        return masked(spread(g * y, a.shape, axis) / a, where)
    if initial is not None:
        g = g * initial
    axes = axes_of(axis, a.ndim)
    order = (*[k for k in range(a.ndim) if k not in axes], *axes)
    turned = transpose(a, axes=order)
    lengths = turned.shape[: a.ndim - len(axes)]
    product = reshape(others(reshape(turned, to=(*lengths, -1 if a.size else 0))), to=turned.shape)
    back = transpose(product, axes=tuple(np.argsort(order).tolist()))
    return masked(kept(g, a.shape, axis) * back, where)


_OVER: Final = {"axis": None, "keepdims": False}
_TYPED: Final = {**_OVER, "dtype": None}
_BOUNDED: Final = {**_OVER, "initial": None}
_SPREAD: Final = {**_TYPED, "ddof": 0, "correction": None}
_H: Final = "holomorphic"

# fmt: off
prod       = numpy_function(np.prod, "a", arrays="where", options={**_TYPED, "initial": 1}, complex_rule=_H, a=_of_product)
var        = numpy_function(np.var,  "a", arrays="where", options=_SPREAD, complex_rule="own", a=_of_variance)
std        = numpy_function(np.std,  "a", arrays="where", options=_SPREAD, complex_rule="own", a=_of_deviation)
amax       = numpy_function(np.amax, "a", arrays="where", options=_BOUNDED, a=to_winners)
amin       = numpy_function(np.amin, "a", arrays="where", options=_BOUNDED, a=to_winners)
# fmt: on


@composed(np.ptp)
def _ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    over = {"axis": axis, "keepdims": keepdims}
    return np.max(a, **over) - np.min(a, **over)
