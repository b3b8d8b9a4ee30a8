"""Reordered axes, `roll`, diagonals, triangles, `pad` and sliding windows, with gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
from numpy.lib.stride_tricks import sliding_window_view

from telegrad.arrays import computing_dtype, is_inexact, namespace, windows_twin
from telegrad.autograd.extend import Operation, composed, constant, numpy_function, primitive
from telegrad.autograd.ops.shape import (
    along,
    broadcast_to,
    concatenate,
    getitem,
    ravel,
    swapaxes,
    transpose,
    turned,
)
from telegrad.autograd.tensor.creation import as_tensor
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.errors import AutogradError
from telegrad.types import Array, Shape

_BACKWARDS: Final = slice(None, None, -1)


@composed(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Replaces `np.moveaxis`."""
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
    return turned(x)


composed(np.matrix_transpose)(lambda x, /: _turned(as_tensor(x)))
composed(np.linalg.matrix_transpose)(lambda x, /: _turned(as_tensor(x)))


@composed(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    """Replaces `np.flip`."""
    m = as_tensor(m)
    axes = range(m.ndim) if axis is None else normalize_axis_tuple(axis, m.ndim)
    index = tuple([_BACKWARDS if k in axes else slice(None) for k in range(m.ndim)])
    return getitem(m, index=index)


composed(np.flipud)(lambda m: flip(m, 0))
composed(np.fliplr)(lambda m: flip(m, 1))


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


# fmt: off
roll: Operation = numpy_function(
    np.roll, "a", options={"shift": None, "axis": None}, complex_rule="own",
    a=lambda g, shift, axis: roll(g, _negative(shift), axis))
# fmt: on


# -- diagonals and triangles ---------------------------------------------------------------------


def _on_diagonal(a: Any, *, into: Shape, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Returns zeros of shape `into` with `a` on the diagonals that `diagonal` reads."""
    xp = namespace(a)
    whole: Array = xp.zeros(into, a.dtype)
    rows, columns = axis1 % len(into), axis2 % len(into)
    others = [k for k in range(len(into)) if k not in (rows, columns)]
    places = xp.arange(a.shape[-1])
    turned = whole.transpose((*others, rows, columns))
    turned[..., places + max(-offset, 0), places + max(offset, 0)] = a
    return whole


_AXES: Final = {"offset": 0, "axis1": 0, "axis2": 1}

# fmt: off
diagonal: Operation = numpy_function(
    np.diagonal, "a", view=True, options=_AXES, complex_rule="own",
    a=lambda g, shape, offset, axis1, axis2:
        on_diagonal(g, into=shape, offset=offset, axis1=axis1, axis2=axis2))
on_diagonal: Operation = primitive(
    "on_diagonal", _on_diagonal, "a", options={"into": (), **_AXES}, complex_rule="own",
    a=lambda g, offset, axis1, axis2: diagonal(g, offset=offset, axis1=axis1, axis2=axis2))
tril: Operation = numpy_function(np.tril, "m", options={"k": 0}, complex_rule="own",
                                 m=lambda g, k: tril(g, k=k))
triu: Operation = numpy_function(np.triu, "m", options={"k": 0}, complex_rule="own",
                                 m=lambda g, k: triu(g, k=k))
# fmt: on


@composed(np.diag)
def _diag(v: Any, k: int = 0) -> Any:
    v = as_tensor(v)
    if v.ndim == 1:
        length = v.size + abs(k)
        return on_diagonal(v, into=(length, length), offset=k)
    if v.ndim == 2:
        return diagonal(v, offset=k)
    raise ValueError(f"diag takes one axis or two, not {v.ndim}")


composed(np.diagflat)(lambda v, k=0: _diag(ravel(as_tensor(v)), k))


# -- `np.pad` ------------------------------------------------------------------------------------
#
# Constants are padded in one step. All other modes pad axis by axis, as NumPy does, from existing
# items, with functions that have rules.


def _inside(shape: Shape, width: Any) -> tuple[slice, ...]:
    pairs = _pairs(width, len(shape))
    return tuple([slice(before, before + n) for n, (before, _) in zip(shape, pairs, strict=True)])


def _pairs(given: Any, ndim: int, missing: Any = 0) -> list[list[Any]]:
    """Returns one of NumPy's `pad` arguments as pairs (before, after), one for each axis."""
    if isinstance(given, Mapping):
        found = {axis % ndim: pair for axis, pair in given.items()}
        given = [np.broadcast_to(found.get(axis, missing), 2).tolist() for axis in range(ndim)]
    pairs: list[list[Any]] = np.broadcast_to(given, (ndim, 2)).tolist()
    return pairs


# The padding of this rule does not depend on the array: constants, and the values of mode `empty`.
_pad_constant = primitive(
    "pad",
    np.pad,
    "array",
    options={"pad_width": 0, "mode": "constant", "constant_values": 0},
    complex_rule="holomorphic",
    array=lambda g, shape, pad_width: getitem(g, index=_inside(shape, pad_width)),
)


# A mode returns the items at `places`, all on one side of the array. `places` counts from the first
# item of the axis. `side` is 0 before the array and 1 after it.


def _edge(a: Any, axis: int, places: Any, side: int) -> Any:
    end = getitem(a, index=along(axis, slice(-1, None) if side else slice(0, 1)))
    shape = (*a.shape[:axis], len(places), *a.shape[axis + 1 :])
    return broadcast_to(end, to=shape)


def _ramp(a: Any, axis: int, places: Any, side: int, end_values: Any = 0) -> Any:
    width = len(places)
    steps = np.arange(1, width + 1) if side else np.arange(width, 0, -1)
    xp = namespace(a.data)
    away = xp.asarray((steps / width).astype(a.dtype))
    away = away.reshape(_shape_of_axis(a.ndim, axis, width))
    if isinstance(end_values, Tensor) and end_values.requires_grad:
        raise AutogradError("pad has no gradient with respect to end_values; pass t.detach()")
    end = _pairs(end_values, a.ndim)[axis][side]
    return _edge(a, axis, places, side) * (1 - away) + end * away


def _shape_of_axis(ndim: int, axis: int, n: int) -> Shape:
    return tuple([n if k == axis else 1 for k in range(ndim)])


def _statistic(function: Callable[..., Any]) -> Callable[..., Any]:
    def pad(a: Any, axis: int, places: Any, side: int, stat_length: Any = None) -> Any:
        n = a.shape[axis]
        count = n if stat_length is None else min(_pairs(stat_length, a.ndim)[axis][side], n)
        part = getitem(a, index=along(axis, slice(n - count, None) if side else slice(0, count)))
        return _edge(function(part, axis=axis, keepdims=True), axis, places, side)

    return pad


def _reflected(
    less: int, a: Any, axis: int, places: Any, side: int, reflect_type: str = "even"
) -> Any:
    """Mirrors the array at both ends as often as needed; "odd" also reflects about the end's value.

    Place j is in image number q = j // period; images with odd numbers run backwards. `less` is 1
    if the item at an end is not repeated.
    """
    n = a.shape[axis]
    period = max(n - less, 1)
    image, inside = np.divmod(places, period)
    backwards = image % 2 == 1
    items = getitem(a, index=along(axis, np.where(backwards, n - 1 - inside, inside)))
    if reflect_type == "even":
        return items
    xp = namespace(a.data)
    shape = _shape_of_axis(a.ndim, axis, len(places))
    sign, odd, image = (
        xp.asarray(x.astype(a.dtype)).reshape(shape) for x in (1 - 2 * backwards, backwards, image)
    )
    first, last = (getitem(a, index=along(axis, i)) for i in (slice(0, 1), slice(n - 1, n)))
    return sign * items + odd * (first + last) + image * (last - first)


def _wrap(a: Any, axis: int, places: Any, side: int) -> Any:
    return getitem(a, index=along(axis, places % a.shape[axis]))


_MODES: Final[Mapping[str, Callable[..., Any]]] = {
    "edge": _edge,
    "linear_ramp": _ramp,
    "maximum": _statistic(np.max),
    "mean": _statistic(np.mean),
    "median": _statistic(np.median),
    "minimum": _statistic(np.min),
    "reflect": partial(_reflected, 1),
    "symmetric": partial(_reflected, 0),
    "wrap": _wrap,
}


_without_gradient = constant(np.pad)


@composed(np.pad)
def _pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    if not is_inexact(array.dtype):
        return _without_gradient(array, pad_width, mode, **kwargs)
    if mode in ("constant", "empty"):
        return _pad_constant(array, pad_width=pad_width, mode=mode, **kwargs)
    if mode not in _MODES:
        raise ValueError(f"pad of tensors knows no mode {mode!r}; it knows {', '.join(_MODES)}")
    for axis, (before, after) in enumerate(_pairs(pad_width, array.ndim)):
        n = array.shape[axis]
        sides = [np.arange(-before, 0), np.arange(n, n + after)]
        parts = [
            _MODES[mode](array, axis, places, side, **kwargs) if len(places) else None
            for side, places in enumerate(sides)
        ]
        present = [part for part in (parts[0], array, parts[1]) if part is not None]
        array = concatenate(*present, axis=axis) if len(present) > 1 else array
    return array


# -- sliding windows, which are views of an array ------------------------------------------------


def _folded(a: Any, *, into: Shape, axis: Any) -> Array:
    """Adds up windows at their places in an array of shape `into`: the transpose of `windows`."""
    axes = normalize_axis_tuple(range(len(into)) if axis is None else axis, len(into), None, True)
    whole: Array = namespace(a).zeros(into, computing_dtype(a.dtype))
    lengths = a.shape[: len(into)]
    for offset in np.ndindex(a.shape[len(into) :]):
        start = [0] * len(into)
        for axis_of_window, k in zip(axes, offset, strict=True):
            start[axis_of_window] += k
        place = tuple([slice(k, k + n) for k, n in zip(start, lengths, strict=True)])
        whole[place] += a[(..., *offset)]
    return whole.astype(a.dtype, copy=False)


_H: Final = "holomorphic"

# fmt: off
windows: Operation = primitive(
    "sliding_window_view", sliding_window_view, "x", stands_for=(sliding_window_view,), view=True,
    complex_rule=_H, kernels={"cupy": windows_twin}, options={"window_shape": None, "axis": None},
    x=lambda g, shape, axis: folded(g, into=shape, axis=axis))
folded: Operation = primitive(
    "folded", _folded, "a", complex_rule=_H, options={"into": (), "axis": None},
    a=lambda g, shape, into, axis: windows(g, shape[len(into):], axis))
# fmt: on
