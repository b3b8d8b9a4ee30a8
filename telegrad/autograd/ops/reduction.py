"""Sums, means and extrema over axes, each with its gradient rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from telegrad.autograd.operation import Operation, astype, broadcast_to
from telegrad.autograd.ops.arithmetic import where
from telegrad.autograd.ops.shape import reshape
from telegrad.types import Array, Shape

__all__ = ["mean", "reduce_max", "reduce_min", "reduce_sum"]


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple(k % ndim for k in axes)


def _kept(x: Any, shape: Shape, axis: Any) -> Any:
    """Gives a reduced value its reduced axes back, with length 1."""
    axes = _axes(axis, len(shape))
    return reshape(x, to=tuple(1 if k in axes else n for k, n in enumerate(shape)))


def _spread(g: Any, shape: Shape, axis: Any) -> Any:
    return broadcast_to(_kept(g, shape, axis), to=shape)


def _count(shape: Shape, axis: Any) -> int:
    return math.prod(shape[k] for k in _axes(axis, len(shape)))


def _shared(g: Any, number: Any) -> Any:
    """Returns `g / number` in the dtype of `g`; one of 16 bits may not hold the number itself."""
    wide = astype(g, dtype=np.float32) if g.dtype.itemsize <= 2 else g
    divisor = number if isinstance(number, int) else astype(number, dtype=wide.dtype)
    return astype(wide / divisor, dtype=g.dtype) if wide is not g else wide / divisor


def _to_winners(g: Any, y: Any, a: Any, axis: Any) -> Any:
    # Equal winners share the gradient equally. `winners` is constant wherever it has a derivative.
    winners = a == _kept(y, a.shape, axis)
    number = winners.sum(axis=axis, keepdims=True)
    return where(winners, _shared(_kept(g, a.shape, axis), number), 0.0)


def _sum(a: Any, *, axis: Any = None, keepdims: bool = False) -> Array:
    total: Array = a.sum(axis=axis, keepdims=keepdims)
    return total


def _mean(a: Any, *, axis: Any = None, keepdims: bool = False) -> Array:
    average: Array = a.mean(axis=axis, keepdims=keepdims)
    return average


def _max(a: Any, *, axis: Any = None, keepdims: bool = False) -> Array:
    largest: Array = a.max(axis=axis, keepdims=keepdims)
    return largest


def _min(a: Any, *, axis: Any = None, keepdims: bool = False) -> Array:
    smallest: Array = a.min(axis=axis, keepdims=keepdims)
    return smallest


_OVER = {"axis": None, "keepdims": False}

# fmt: off
reduce_sum = Operation("sum",  _sum,  "a", keywords=_OVER, a=lambda g, shape, axis: _spread(g, shape, axis))
mean       = Operation("mean", _mean, "a", keywords=_OVER, a=lambda g, shape, axis: _spread(_shared(g, _count(shape, axis)), shape, axis))
reduce_max = Operation("max",  _max,  "a", keywords=_OVER, a=lambda g, y, a, axis: _to_winners(g, y, a, axis))
reduce_min = Operation("min",  _min,  "a", keywords=_OVER, a=lambda g, y, a, axis: _to_winners(g, y, a, axis))
# fmt: on
