"""Differences of neighbours, what undoes them, and areas, with their rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import astype, broadcast_to, concatenate, ravel, reshape
from telegrad.autograd.ops.shape import along
from telegrad.autograd.rules.stacking import alike

__all__: list[str] = []

_EARLIER: Final = slice(None, -1)
_LATER: Final = slice(1, None)


@composed(np.diff)
def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if n < 0:
        raise ValueError(f"n must not be negative: {n}")
    given = [x for x in (prepend, a, append) if x is not None]
    parts = alike(given)
    a = parts[0 if prepend is None else 1]
    if n == 0:
        return a
    axis = normalize_axis_index(axis, a.ndim)
    if len(parts) > 1:
        edge = (*a.shape[:axis], 1, *a.shape[axis + 1 :])
        parts = [broadcast_to(x, to=edge) if x.ndim == 0 else x for x in parts]
        a = concatenate(*parts, axis=axis)
    for _ in range(n):
        later, earlier = a[along(axis, _LATER)], a[along(axis, _EARLIER)]
        a = later != earlier if a.dtype == np.bool_ else later - earlier
    return a


@composed(np.ediff1d)
def _ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    given = [x for x in (to_begin, ary, to_end) if x is not None]
    parts = [ravel(x) for x in alike(given)]
    place = 0 if to_begin is None else 1
    line = parts[place]
    parts[place] = line[1:] - line[:-1]
    for x in parts:
        if not np.can_cast(x.dtype, line.dtype, casting="same_kind"):
            raise TypeError(f"{x.dtype} is not of the kind of {line.dtype}, the dtype of ary")
    return concatenate(*[astype(x, dtype=line.dtype) for x in parts], axis=0)


@composed(np.trapezoid)
def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    steps = dx
    if x is None:
        y = as_tensor(y)
    else:
        y, x = alike((y, x))
    place = normalize_axis_index(axis, y.ndim)
    if x is not None:
        steps = _diff(x, axis=-1 if x.ndim == 1 else axis)
        if x.ndim == 1:
            steps = reshape(steps, to=(-1, *[1] * (y.ndim - place - 1)))
    both = y[along(place, _LATER)] + y[along(place, _EARLIER)]
    return (steps * both / 2.0).sum(axis)


# fmt: off
# What it adds is constant between jumps.
unwrap = numpy_function(np.unwrap, "p", options={"discont": None, "axis": -1, "period": 2 * np.pi}, p=lambda g: g)
# fmt: on
