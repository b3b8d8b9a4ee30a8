"""NumPy's functions of shape, order of axes, joining, dtype and device, with NumPy's parameters.

Parameters that have no meaning for Tensors (`subok=`, ...) are missing from the signatures, so
Python's own TypeError names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from telegrad.arrays import (
    as_array,
    device_name,
    device_of,
    is_inexact,
    namespace,
    to_device,
)
from telegrad.autograd.extend import composed
from telegrad.autograd.graph.dispatch import TABLE
from telegrad.autograd.graph.unrecorded import constant
from telegrad.autograd.ops import shape as shaping
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.types import DTypeLike, Shape

__all__ = [
    "as_type",
    "broadcast",
    "concatenate",
    "expand_dims",
    "on_device",
    "ravel",
    "reshape",
    "squeeze",
    "stack",
    "swapaxes",
    "transpose",
]


@composed(np.reshape)
def reshape(a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """Replaces `np.reshape`."""
    to = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    to = _resolve(to, a)
    if order != "C" and (order == "F" or _columns_first(a)):
        columns = shaping.reshape(shaping.transpose(a), to=to[::-1])
        shaped = shaping.transpose(columns)
    else:
        shaped = shaping.reshape(a, to=to)
    if copy is None or a.size == 0:
        return shaped
    shares = namespace(a.data).may_share_memory(a.data, shaped.data)
    if not copy and not shares:
        raise ValueError(f"{a.shape} cannot become {to} without a copy; leave out copy=False")
    return np.copy(shaped) if copy and shares else shaped


@composed(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    """Replaces `np.ravel`."""
    if order == "K":
        a = shaping.transpose(a, axes=_by_stride(a))
    elif order == "F" or (order == "A" and _columns_first(a)):
        a = shaping.transpose(a)
    return shaping.reshape(a, to=(a.size,))


def _columns_first(a: Any) -> bool:
    flags = a.data.flags
    return bool(flags.f_contiguous and not flags.c_contiguous)


def _by_stride(a: Any) -> tuple[int, ...]:
    return tuple(sorted(range(a.ndim), key=lambda k: -abs(a.data.strides[k])))


@composed(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    """Replaces `np.squeeze`."""
    gone = range(a.ndim) if axis is None else normalize_axis_tuple(axis, max(a.ndim, 1))
    if axis is not None and any(n != 1 for k, n in enumerate(a.shape) if k in gone):
        raise ValueError(f"axis {axis} of shape {a.shape} does not have length 1")
    return shaping.reshape(a, to=tuple(n for k, n in enumerate(a.shape) if n != 1 or k not in gone))


@composed(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    """Replaces `np.expand_dims`."""
    ndim = a.ndim + (len(axis) if isinstance(axis, (tuple, list)) else 1)
    new = normalize_axis_tuple(axis, ndim)
    lengths = iter(a.shape)
    return shaping.reshape(a, to=tuple(1 if k in new else next(lengths) for k in range(ndim)))


@composed(np.transpose)
def transpose(a: Any, axes: Any = None) -> Any:
    """Replaces `np.transpose`."""
    return shaping.transpose(a, axes=axes)


@composed(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Replaces `np.swapaxes`."""
    return shaping.swapaxes(a, axis1=axis1, axis2=axis2)


@composed(np.broadcast_to)
def broadcast(array: Any, shape: Any) -> Any:
    """Replaces `np.broadcast_to`."""
    return shaping.broadcast_to(array, to=(shape,) if isinstance(shape, int) else tuple(shape))


@composed(np.concatenate)
def concatenate(
    arrays: Sequence[Any],
    /,
    axis: int | None = 0,
    out: None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: Any = "same_kind",
) -> Any:
    """Replaces `np.concatenate`."""
    parts = arrays
    if axis is None:
        parts, axis = [ravel(x if isinstance(x, Tensor) else as_array(x)) for x in arrays], 0
    return _cast(shaping.concatenate(*parts, axis=axis), dtype, casting)


@composed(np.stack)
def stack(
    arrays: Sequence[Any],
    axis: int = 0,
    out: None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: Any = "same_kind",
) -> Any:
    """Replaces `np.stack`."""
    return _cast(shaping.stack(*arrays, axis=axis), dtype, casting)


def _cast(joined: Any, dtype: DTypeLike | None, casting: Any) -> Any:
    if dtype is None:
        return joined
    if not np.can_cast(joined.dtype, np.dtype(dtype), casting):
        raise TypeError(f"{joined.dtype} cannot be cast to {dtype} with casting={casting!r}")
    return as_type(joined, dtype)


@composed(np.astype)
def as_type(x: Any, dtype: DTypeLike, /, *, copy: bool = True) -> Any:
    """Replaces `np.astype`; a result of a dtype without gradients needs no gradient."""
    exact = np.dtype(dtype)
    if not copy and x.dtype == exact:
        return x
    convert = shaping.astype if is_inexact(exact) else constant(shaping.astype)
    return convert(x, dtype=exact)


@TABLE.register(to_device)
def on_device(array: Any, device: str) -> Any:
    """Replaces `to_device`; returns a Tensor that is on the device already as it is."""
    exact, source = device_name(device), device_of(array.data)
    return array if exact == source else shaping.move(array, device=exact, source=source)


def _resolve(to: Shape, a: Any) -> Shape:
    if -1 not in to:
        return to
    if to.count(-1) > 1:
        raise ValueError(f"a shape may have only one unknown length: {to}")
    known = math.prod(n for n in to if n != -1)
    return tuple(a.size // max(known, 1) if n == -1 else n for n in to)
