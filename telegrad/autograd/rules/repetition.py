"""Functions that repeat items, written with others: where they can, as views that broadcast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from telegrad.arrays import to_host
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import broadcast_to, ravel, reshape
from telegrad.autograd.rules.selection import plain, take, zeros_beside

__all__: list[str] = []


@composed(np.tile)
def _tile(A: Any, reps: Any) -> Any:
    a = as_tensor(A)
    times = [int(k) for k in np.atleast_1d(reps)]
    ndim = max(a.ndim, len(times))
    times = [1] * (ndim - len(times)) + times
    lengths = (*[1] * (ndim - a.ndim), *a.shape)
    apart = reshape(a, to=tuple([k for n in lengths for k in (1, n)]))
    pairs = list(zip(times, lengths, strict=True))
    spread = broadcast_to(apart, to=tuple([k for pair in pairs for k in pair]))
    return reshape(spread, to=tuple([k * n for k, n in pairs]))


@composed(np.repeat)
def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    a = as_tensor(a)
    if axis is None or not a.ndim:
        a, axis = ravel(a), axis or 0
    axis = normalize_axis_index(axis, a.ndim)
    before, length, after = a.shape[:axis], a.shape[axis], a.shape[axis + 1 :]
    times = to_host(plain(repeats, np.empty(0)))  # no data: how often
    if times.size != 1:
        times = times if times.size else times.astype(np.intp)  # of an empty list, not yet integers
        return take(a, np.repeat(np.arange(length), times), axis)
    number = int(times.item())
    apart = reshape(a, to=(*before, length, 1, *after))
    spread = broadcast_to(apart, to=(*before, length, number, *after))
    return reshape(spread, to=(*before, length * number, *after))


@composed(np.resize)
def _resize(a: Any, new_shape: Any) -> Any:
    a = ravel(as_tensor(a))
    shape = (new_shape,) if isinstance(new_shape, (int, np.integer)) else tuple(new_shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"a shape has no negative lengths: {shape}")
    size = math.prod(shape)
    if size and not a.size:
        return as_tensor(zeros_beside(a, shape))
    return reshape(take(a, np.arange(size) % max(a.size, 1)), to=shape)


@composed(np.full_like)
def _full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: str | None = None,
) -> Any:
    if device is not None:
        raise TypeError("full_like of tensors does not take device; it is that of the first one")
    filled = as_tensor(np.empty_like(a, dtype, order, subok, shape))
    filled[...] = fill_value
    return filled
