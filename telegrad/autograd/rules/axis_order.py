"""Functions that give axes another order or direction: views, and `roll`, with their rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import Operation, composed, numpy_function
from telegrad.autograd.ops import getitem, swapaxes, transpose

__all__ = ["moveaxis"]

_BACKWARDS: Final = slice(None, None, -1)


@composed(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Stands in for `np.moveaxis`."""
    a = as_tensor(a)
    sources = normalize_axis_tuple(source, a.ndim, "source")
    places = normalize_axis_tuple(destination, a.ndim, "destination")
    if len(sources) != len(places):
        raise ValueError("moveaxis needs as many destinations as sources")
    axes = [k for k in range(a.ndim) if k not in sources]
    for place, k in sorted(zip(places, sources, strict=True)):
        axes.insert(place, k)
    return transpose(a, axes=tuple(axes))


@composed(np.rollaxis)
def _rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    a = as_tensor(a)
    axis = normalize_axis_index(axis, a.ndim)
    start = start + a.ndim if start < 0 else start
    if not 0 <= start <= a.ndim:
        raise ValueError(f"start must be from {-a.ndim} to {a.ndim}")
    return moveaxis(a, axis, start - 1 if start > axis else start)


def _turned(x: Any) -> Any:
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose needs at least two axes, not {x.ndim}")
    return swapaxes(x, axis1=-1, axis2=-2)


@composed(np.matrix_transpose)
def _matrix_transpose(x: Any, /) -> Any:
    return _turned(as_tensor(x))


@composed(np.linalg.matrix_transpose)
def _transpose_of_linalg(x: Any, /) -> Any:
    return _turned(as_tensor(x))


@composed(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    """Stands in for `np.flip`."""
    m = as_tensor(m)
    axes = range(m.ndim) if axis is None else normalize_axis_tuple(axis, m.ndim)
    index = tuple([_BACKWARDS if k in axes else slice(None) for k in range(m.ndim)])
    return getitem(m, index=index)


@composed(np.flipud)
def _flipud(m: Any) -> Any:
    return flip(m, 0)


@composed(np.fliplr)
def _fliplr(m: Any) -> Any:
    return flip(m, 1)


@composed(np.rot90)
def _rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    m = as_tensor(m)
    first, second = normalize_axis_tuple(axes, m.ndim, "axes")
    quarters = k % 4
    if quarters in (0, 2):
        return flip(m, (first, second) if quarters else ())
    if quarters == 1:
        return swapaxes(flip(m, second), axis1=first, axis2=second)
    return flip(swapaxes(m, axis1=first, axis2=second), second)


def _negative(shift: Any) -> Any:
    return tuple([-k for k in shift]) if isinstance(shift, (list, tuple)) else -shift


roll: Operation  # declared, as its rule names it

# fmt: off
roll = numpy_function(np.roll, "a", options={"shift": None, "axis": None}, complex_rule="own",
                      a=lambda g, shift, axis: roll(g, _negative(shift), axis))
# fmt: on
