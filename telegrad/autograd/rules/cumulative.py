"""Sums and products so far, with their gradient rules, and what these build on."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.extend import Operation, composed, numpy_function, primitive
from telegrad.autograd.ops import concatenate, reshape, swapaxes
from telegrad.autograd.ops import where as choose
from telegrad.types import Array, Shape

__all__ = ["cumprod", "cumsum", "others", "recurrence"]


def _recurrence(a: Any, b: Any) -> Array:
    """Returns h with h[i] = a[i] * h[i - 1] + b[i] along the last axis, h[-1] = 0."""
    xp = namespace(a, b)
    a, b = xp.broadcast_arrays(a, b)
    h: Array = xp.array(b, dtype=xp.result_type(a, b))
    for i in range(1, h.shape[-1]):
        h[..., i] += a[..., i] * h[..., i - 1]
    return h


def _later(x: Any, first: float) -> Any:
    """Moves everything by one along the last axis, `first` comes in."""
    edge = np.full_like(x[..., :1], first)
    return concatenate(edge, x[..., :-1], axis=-1)


def _sooner(x: Any) -> Any:
    edge = np.zeros_like(x[..., :1])
    return concatenate(x[..., 1:], edge, axis=-1)


def _turned(x: Any) -> Any:
    return x[..., ::-1]


def _upstream(g: Any, a: Any) -> Any:
    """The gradient that reaches each h[i]: what comes in there and what comes from h[i + 1]."""
    return _turned(recurrence(_turned(_sooner(a)), _turned(g)))


def others(a: Any) -> Any:
    """Returns, for each item of the last axis, the product of all others; right beside zeros."""
    before = cumprod(_later(a, 1.0), axis=-1)
    after = cumprod(_later(_turned(a), 1.0), axis=-1)
    return before * _turned(after)


def _along(rule: Any, g: Any, axis: Any, shape: Shape, *values: Any) -> Any:
    """Runs a rule of the last axis on another one; `axis` None means all items in a row."""
    if axis is None or len(shape) < 2:
        flat = [reshape(x, to=(-1 if x.size else 0,)) for x in (g, *values)]
        return reshape(rule(*flat), to=shape)
    last = [swapaxes(x, axis1=axis, axis2=-1) for x in (g, *values)]
    return swapaxes(rule(*last), axis1=axis, axis2=-1)


def _of_sums(g: Any) -> Any:
    return _turned(cumsum(_turned(g), axis=-1))


def _of_products(g: Any, a: Any, y: Any) -> Any:
    if (y == 0).any():
        return _upstream(g, a) * _later(y, 1.0)
    return _of_sums(g * y) / a


cumsum: Operation  # declared, as rules name what stands below
cumprod: Operation
recurrence: Operation
_ALONG: Final = {"axis": None, "dtype": None}
_H: Final = "holomorphic"

# fmt: off
cumsum     = numpy_function(np.cumsum,  "a", options=_ALONG, complex_rule=_H, a=lambda g, shape, axis: _along(_of_sums, g, axis, shape))
cumprod    = numpy_function(np.cumprod, "a", options=_ALONG, complex_rule=_H, a=lambda g, a, y, axis: _along(_of_products, g, axis, a.shape, a, y))
recurrence = primitive("recurrence", _recurrence, "a b", complex_rule=_H, a=lambda g, a, y: _upstream(g, a) * _later(y, 0.0),
                                                                          b=_upstream)
# fmt: on


def _including(function: Any, first: float, x: Any, axis: Any, dtype: Any, initial: bool) -> Any:
    if isinstance(x, (list, tuple)):
        raise TypeError(
            f"{function.__name__} takes one array or tensor; np.stack makes it of a list"
        )
    if x.ndim > 1 and axis is None:
        raise ValueError("axis must be given for an array of more than one dimension")
    axis = 0 if axis is None else axis
    result = function(np.atleast_1d(x) if x.ndim == 0 else x, axis=axis, dtype=dtype)
    if not initial:
        return result
    axis %= result.ndim
    shape = tuple([1 if k == axis else n for k, n in enumerate(result.shape)])
    start = namespace(result.data).full_like(result.data, first, shape=shape)
    return concatenate(start, result, axis=axis)


@composed(np.cumulative_sum)
def _cumulative_sum(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    return _including(np.cumsum, 0.0, x, axis, dtype, include_initial)


@composed(np.cumulative_prod)
def _cumulative_prod(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    return _including(np.cumprod, 1.0, x, axis, dtype, include_initial)


@composed(np.nancumsum)
def _nancumsum(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return np.cumsum(choose(np.isnan(a), 0.0, a), axis=axis, dtype=dtype)


@composed(np.nancumprod)
def _nancumprod(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return np.cumprod(choose(np.isnan(a), 1.0, a), axis=axis, dtype=dtype)
