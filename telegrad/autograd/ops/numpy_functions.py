"""NumPy's functions (those that are no ufuncs) on Tensors, with NumPy's argument order.

What an operation has no rule for (`dtype=`, `out=`, `where=`, ...) is no parameter here, so
Python's own TypeError names it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from telegrad.arrays import as_array, device_name, device_of, is_inexact, to_device
from telegrad.autograd.dispatch import TABLE
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import arithmetic
from telegrad.autograd.ops import shape as shaping
from telegrad.autograd.plain import constant
from telegrad.autograd.tensor import Tensor
from telegrad.types import DTypeLike, Shape

__all__ = [
    "as_type",
    "broadcast",
    "clip",
    "concatenate",
    "expand_dims",
    "on_device",
    "ravel",
    "reshape",
    "squeeze",
    "stack",
    "swapaxes",
    "transpose",
    "where",
]


@composed(np.clip)
def clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: None = None,
    *,
    min: Any = None,  # noqa: A002  NumPy's name
    max: Any = None,  # noqa: A002
) -> Any:
    """Stands in for `np.clip`; a bound that needs a gradient gets what is clipped to it."""
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if not any(isinstance(bound, Tensor) and bound.requires_grad for bound in (low, high)):
        low, high = (x.data if isinstance(x, Tensor) else x for x in (low, high))
        return arithmetic.clip(a, low=low, high=high)
    above = a if low is None else np.maximum(a, low)
    return above if high is None else np.minimum(above, high)


@composed(np.where)
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Stands in for `np.where`; of one argument, it is `np.nonzero`."""
    if x is None and y is None:
        return np.nonzero(condition)
    return arithmetic.where(condition, x, y)


@composed(np.reshape)
def reshape(a: Any, /, shape: Any) -> Any:
    """Stands in for `np.reshape`."""
    to = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    return shaping.reshape(a, to=_resolve(to, a))


@composed(np.ravel)
def ravel(a: Any) -> Any:
    """Stands in for `np.ravel`."""
    return shaping.reshape(a, to=(a.size,))


@composed(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    """Stands in for `np.squeeze`."""
    axes = axis if isinstance(axis, tuple) or axis is None else (axis,)
    gone = {k % a.ndim for k in axes} if axes is not None else set(range(a.ndim))
    if axes is not None and any(a.shape[k] != 1 for k in gone):
        raise ValueError(f"axis {axis} of shape {a.shape} has not length 1")
    return shaping.reshape(a, to=tuple(n for k, n in enumerate(a.shape) if n != 1 or k not in gone))


@composed(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    """Stands in for `np.expand_dims`."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    ndim = a.ndim + len(axes)
    new = {k % ndim for k in axes}
    lengths = iter(a.shape)
    return shaping.reshape(a, to=tuple(1 if k in new else next(lengths) for k in range(ndim)))


@composed(np.transpose)
def transpose(a: Any, axes: Any = None) -> Any:
    """Stands in for `np.transpose`."""
    return shaping.transpose(a, axes=axes)


@composed(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Stands in for `np.swapaxes`."""
    return shaping.swapaxes(a, axis1=axis1, axis2=axis2)


@composed(np.broadcast_to)
def broadcast(array: Any, shape: Any) -> Any:
    """Stands in for `np.broadcast_to`."""
    return shaping.broadcast_to(array, to=(shape,) if isinstance(shape, int) else tuple(shape))


@composed(np.concatenate)
def concatenate(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    """Stands in for `np.concatenate`."""
    if axis is None:
        flat = [ravel(x if isinstance(x, Tensor) else as_array(x)) for x in arrays]
        return shaping.concatenate(*flat, axis=0)
    return shaping.concatenate(*arrays, axis=axis)


@composed(np.stack)
def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Stands in for `np.stack`."""
    return shaping.stack(*arrays, axis=axis)


@composed(np.astype)
def as_type(x: Any, dtype: DTypeLike, /) -> Any:
    """Stands in for `np.astype`; a result that cannot have a gradient needs none."""
    exact = np.dtype(dtype)
    convert = shaping.astype if is_inexact(exact) else constant(shaping.astype)
    return convert(x, dtype=exact)


@TABLE.register(to_device)
def on_device(array: Any, device: str) -> Any:
    """Stands in for `to_device`; a Tensor that is there already is returned as it is."""
    exact, source = device_name(device), device_of(array.data)
    return array if exact == source else shaping.move(array, device=exact, source=source)


def _resolve(to: Shape, a: Any) -> Shape:
    if -1 not in to:
        return to
    known = math.prod(n for n in to if n != -1)
    return tuple(a.size // max(known, 1) if n == -1 else n for n in to)
