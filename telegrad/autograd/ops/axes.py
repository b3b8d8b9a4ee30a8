"""What rules of functions over axes share: giving reduced axes back, counting, masks."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.autograd.ops.arithmetic import where as choose
from telegrad.autograd.ops.shape import astype, broadcast_to, reshape
from telegrad.types import Shape

__all__ = ["axes_of", "count", "kept", "masked", "shared", "spread", "to_winners"]


_FEW: Final = 4096
"""Items that are copied in less time than `np.broadcast_to` takes to make a view (2.4 us)."""


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Returns the axes that NumPy's `axis` names, counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple([int(k) % ndim for k in axes]) if ndim else ()


def kept(x: Any, shape: Shape, axis: Any) -> Any:
    """Gives a reduced value its reduced axes back, with length 1."""
    if axis is None:
        to: Shape = (1,) * len(shape)
    else:
        axes = axes_of(axis, len(shape))
        to = tuple([1 if k in axes else n for k, n in enumerate(shape)])
    if x.shape == to:
        return x
    return x.reshape(to) if type(x) is np.ndarray else reshape(x, to=to)


def spread(g: Any, shape: Shape, axis: Any) -> Any:
    """Gives a reduced value its reduced axes back, repeated."""
    g = kept(g, shape, axis)
    if type(g) is np.ndarray and math.prod(shape) <= _FEW:
        repeated = np.empty(shape, g.dtype)
        repeated[...] = g
        return repeated
    return np.broadcast_to(g, shape) if type(g) is np.ndarray else broadcast_to(g, to=shape)


def masked(g: Any, where: Any) -> Any:
    """Returns `g` where it was counted, else 0."""
    return g if where is None or where is True else choose(where, g, 0.0)


def count(shape: Shape, axis: Any, where: Any = None) -> Any:
    """Returns how many items each result is made of: a number, with `where` an array."""
    if axis is None and (where is None or where is True):
        return math.prod(shape)
    if where is None or where is True:
        return math.prod([shape[k] for k in axes_of(axis, len(shape))])
    return broadcast_to(where, to=shape).sum(axis=axis, keepdims=True)


def shared(g: Any, number: Any) -> Any:
    """Returns `g / number` in the dtype of `g`; one of 16 bits may not hold the number itself."""
    wide = astype(g, dtype=np.float32) if g.dtype.itemsize <= 2 else g
    divisor = number if isinstance(number, (int, float)) else astype(number, dtype=wide.dtype)
    return astype(wide / divisor, dtype=g.dtype) if wide is not g else wide / divisor


def to_winners(g: Any, y: Any, a: Any, axis: Any, where: Any = None) -> Any:
    """Gives the gradient of an extremum to the items that are equal to it, in equal shares."""
    # `winners` is constant wherever it has a derivative.
    winners = a == kept(y, a.shape, axis)
    if where is not None and where is not True:
        winners = winners & where
    number = winners.sum(axis=axis, keepdims=True)
    # None wins against an `initial` that is larger than all of them.
    number = number + (number == 0)
    return choose(winners, shared(kept(g, a.shape, axis), number), 0.0)
