"""Functions that select items by index or by condition, with their gradient rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from telegrad.arrays import array_beside, is_array, namespace
from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops.shape import (
    along,
    getitem,
    ravel,
    read,
    reshape,
    scatter,
)
from telegrad.autograd.tensor.creation import as_tensor
from telegrad.autograd.tensor.tensor import Tensor, array_of
from telegrad.types import Array, Shape


def plain(x: Any, beside: Any) -> Array:
    """Returns an array: that of a Tensor, or numbers as an array on the device of `beside`."""
    if isinstance(x, Tensor):
        return x.data
    return x if is_array(x) else array_beside(x, array_of(beside))


def zeros_beside(x: Any, shape: Shape) -> Array:
    """Returns zeros of shape `shape` with the dtype of `x`, on its device."""
    array = array_of(x)
    zeros: Array = namespace(array).zeros(shape, array.dtype)
    return zeros


def in_range(numbers: Array, count: int, mode: str) -> Array:
    """Returns indices as `mode`, a mode of `np.take`, maps them; "raise" leaves them as they are.

    Raises:
        ValueError: There is no such mode.
    """
    if mode == "wrap":
        return numbers % count
    if mode == "clip":
        clipped: Array = namespace(numbers).clip(numbers, 0, count - 1)
        return clipped
    if mode != "raise":
        raise ValueError(f"mode is 'raise', 'wrap' or 'clip', not {mode!r}")
    return numbers


@composed(np.take)
def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise"
) -> Any:
    """Replaces `np.take`."""
    a = as_tensor(a)
    if axis is None or not a.ndim:
        a, axis = ravel(a), axis or 0
    axis = normalize_axis_index(axis, a.ndim)
    numbers = plain(indices, a)
    if numbers.dtype == np.bool_ or not numbers.size:  # an empty list has dtype float64
        numbers = numbers.astype(np.intp)
    return read(a, index=along(axis, in_range(numbers, a.shape[axis], mode)))


def _along(indices: Any, axis: int, shape: Shape) -> tuple[Any, ...]:
    """Returns the index with which `take_along_axis` reads."""
    xp = namespace(array_of(indices))
    axis %= len(shape)
    ranges = [
        xp.arange(n).reshape((*[1] * k, n, *[1] * (len(shape) - k - 1)))
        for k, n in enumerate(shape)
    ]
    return (*ranges[:axis], indices, *ranges[axis + 1 :])


def _of_taken(g: Any, shape: Shape, indices: Any, axis: int | None) -> Any:
    if axis is None:
        items = scatter(g, index=(indices,), into=(math.prod(shape),))
        return reshape(items, to=shape)
    return scatter(g, index=_along(indices, axis, shape), into=shape)


# fmt: off
take_along_axis = numpy_function(np.take_along_axis, "arr indices", options={"axis": -1},
                                 complex_rule="own", arr=_of_taken)
# fmt: on


@composed(np.compress)
def _compress(condition: Any, a: Any, axis: int | None = None, out: None = None) -> Any:
    a = as_tensor(a)
    kept = plain(condition, a)
    if kept.ndim != 1:
        raise ValueError(f"condition must have one axis, not {kept.ndim}")
    return take(a, namespace(kept).flatnonzero(kept), axis)


@composed(np.extract)
def _extract(condition: Any, arr: Any) -> Any:
    arr = as_tensor(arr)
    return take(arr, namespace(plain(condition, arr)).flatnonzero(plain(condition, arr)))


@composed(np.trim_zeros)
def _trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    filt = as_tensor(filt)
    if not set(trim.lower()) <= set("fb"):
        raise ValueError(f"trim may hold only 'f' and 'b', not {trim!r}")
    axes = range(filt.ndim) if axis is None else normalize_axis_tuple(axis, filt.ndim)
    if not axes:
        return filt
    places = namespace(filt.data).nonzero(filt.data)
    index = [slice(None)] * filt.ndim
    for k in axes:
        start, stop = 0, filt.shape[k]
        if not places[k].size:
            start = stop
        else:
            start = int(places[k].min()) if "f" in trim.lower() else start
            stop = int(places[k].max()) + 1 if "b" in trim.lower() else stop
        index[k] = slice(start, stop)
    return getitem(filt, index=tuple(index))
