"""Windows that slide over an array, which are a view of it, with their rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.lib.stride_tricks import sliding_window_view

from telegrad.arrays import namespace
from telegrad.autograd.extend import Operation, primitive
from telegrad.types import Array, Shape

__all__ = ["folded", "windows"]


def _windows(x: Any, window_shape: Any, axis: Any = None) -> Array:
    view = namespace(x).lib.stride_tricks.sliding_window_view
    seen: Array = view(x, window_shape, axis)
    return seen


def _folded(a: Any, *, into: Shape, axis: Any) -> Array:
    """Returns the sum of windows where they were seen in an array of shape `into`."""
    axes = normalize_axis_tuple(range(len(into)) if axis is None else axis, len(into), None, True)
    whole: Array = namespace(a).zeros(into, a.dtype)
    lengths = a.shape[: len(into)]
    for offset in np.ndindex(a.shape[len(into) :]):
        start = [0] * len(into)
        for axis_of_window, k in zip(axes, offset, strict=True):
            start[axis_of_window] += k
        place = tuple([slice(k, k + n) for k, n in zip(start, lengths, strict=True)])
        whole[place] += a[(..., *offset)]
    return whole


windows: Operation  # declared, as rules name what stands below
folded: Operation
_H: Final = "holomorphic"

# fmt: off
windows = primitive("sliding_window_view", _windows, "x", stands_for=(sliding_window_view,), view=True, complex_rule=_H,
                    options={"window_shape": None, "axis": None}, x=lambda g, shape, axis: folded(g, into=shape, axis=axis))
folded  = primitive("folded", _folded, "a", complex_rule=_H, options={"into": (), "axis": None},
                    a=lambda g, shape, into, axis: windows(g, shape[len(into):], axis))
# fmt: on
