"""Functions that apply a function of the user's along axes, written with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import expand_dims, getitem, reshape, stack
from telegrad.autograd.rules.axis_order import moveaxis
from telegrad.autograd.rules.stacking import alike

__all__: list[str] = []


@composed(np.apply_along_axis)
def _apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any
) -> Any:
    arr = as_tensor(arr)
    axis = normalize_axis_index(axis, arr.ndim)
    lines = moveaxis(arr, axis, -1)
    outer = lines.shape[:-1]
    results = alike([func1d(getitem(lines, index=k), *args, **kwargs) for k in np.ndindex(outer)])
    if not results:
        raise ValueError(f"there is nothing to apply a function to: shape {arr.shape}, axis {axis}")
    shape = results[0].shape
    whole = reshape(stack(*results, axis=0), to=(*outer, *shape))
    inner = tuple(range(len(outer), whole.ndim))
    return moveaxis(whole, inner, tuple(range(axis, axis + len(shape))))


@composed(np.apply_over_axes)
def _apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Any:
    value = as_tensor(a)
    for axis in np.atleast_1d(axes).tolist():
        axis = normalize_axis_index(axis, value.ndim)
        result = func(value, axis)
        value = result if result.ndim == value.ndim else expand_dims(result, axis)
    return value
