"""Sorting, sets, interpolation, finite differences and functions along axes, with gradient rules.

Among equal items, the gradient goes to the one that NumPy's own order puts at the place. For
`unique` and the functions that use it, that is the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from telegrad.arrays import namespace, stable_order
from telegrad.autograd.extend import composed
from telegrad.autograd.ops.axes import moveaxis
from telegrad.autograd.ops.elementwise import where
from telegrad.autograd.ops.joining import alike
from telegrad.autograd.ops.selection import take, take_along_axis
from telegrad.autograd.ops.shape import (
    along,
    astype,
    concatenate,
    expand_dims,
    getitem,
    ravel,
    reshape,
    stack,
)
from telegrad.autograd.tensor.creation import as_tensor
from telegrad.autograd.tensor.tensor import Tensor


def _ordered(a: Any, axis: int | None, order: Callable[[Any, int], Any]) -> Any:
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis_index(axis, a.ndim)
    return take_along_axis(a, order(a.data, axis), axis=axis)


def _refuse_fields(order: None) -> None:
    if order is not None:
        raise TypeError("a tensor has no fields to order by")


@composed(np.sort)
def _sort(
    a: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: None = None,
    *,
    stable: bool | None = None,
) -> Any:
    _refuse_fields(order)
    return _ordered(as_tensor(a), axis, lambda data, k: stable_order(data, k, kind, stable))


@composed(np.partition)
def _partition(
    a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: None = None
) -> Any:
    del kind  # there is only one
    _refuse_fields(order)
    return _ordered(
        as_tensor(a), axis, lambda data, k: namespace(data).argpartition(data, kth, axis=k)
    )


@composed(np.sort_complex)
def _sort_complex(a: Any) -> Any:
    a = as_tensor(a)
    if a.dtype.kind == "c":
        return _sort(a)
    short = a.dtype in (np.int8, np.int16, np.uint8, np.uint16)
    return _sort(astype(a, dtype=np.result_type(a.dtype, np.complex64 if short else np.complex128)))


@composed(np.unique)
def _unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    ar = as_tensor(ar)
    apart = {} if equal_nan else {"equal_nan": False}
    _, first, *others = namespace(ar.data).unique(
        ar.data, True, return_inverse, return_counts, axis, **apart
    )
    values = take(ar, first, axis)
    asked = [first] * return_index + others
    return (values, *map(Tensor, asked)) if asked else values


def _named(function: Callable[..., Any], x: Any, **asked: bool) -> Any:
    # The type of NumPy's result holds the names of its fields and does not depend on the numbers.
    kind = type(function(np.zeros(1)))
    return kind(*_unique(x, equal_nan=False, **asked))


# fmt: off
composed(np.unique_values)(lambda x: _unique(x, equal_nan=False))
composed(np.unique_all)(lambda x:
    _named(np.unique_all, x, return_index=True, return_inverse=True, return_counts=True))
composed(np.unique_counts)(lambda x: _named(np.unique_counts, x, return_counts=True))
composed(np.unique_inverse)(lambda x: _named(np.unique_inverse, x, return_inverse=True))
composed(np.union1d)(lambda ar1, ar2:
    _unique(concatenate(*[ravel(x) for x in alike((ar1, ar2))], axis=0)))
# fmt: on


def _sets(ar1: Any, ar2: Any, assume_unique: bool) -> list[Any]:
    return [ravel(x) if assume_unique else _unique(x) for x in alike((ar1, ar2))]


def _only(first: Any, second: Any) -> Any:
    return first[~np.isin(first, second)]


# fmt: off
composed(np.setdiff1d)(lambda ar1, ar2, assume_unique=False:
    _only(*_sets(ar1, ar2, assume_unique)))
# fmt: on


@composed(np.setxor1d)
def _setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    first, second = _sets(ar1, ar2, assume_unique)
    return _sort(concatenate(_only(first, second), _only(second, first), axis=0))


@composed(np.intersect1d)
def _intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False
) -> Any:
    first, second = (ravel(x) for x in alike((ar1, ar2)))
    xp = namespace(first.data)
    alone = assume_unique and xp is np  # CuPy then takes the second array for sorted
    _, *places = xp.intersect1d(first.data, second.data, alone, return_indices=True)
    values = take(concatenate(first, second, axis=0), places[0])
    return (values, *map(Tensor, places)) if return_indices else values


# -- piecewise linear interpolation and finite differences on a grid -----------------------------
#
# `interp` has gradients with respect to `x`, the knots `xp` and the values `fp`. At a knot, the
# slope is that of the piece that begins there; at the last knot, that of the last piece.


@composed(np.interp)
def _interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    x, xp, fp = alike((x, xp, fp))
    x, xp = np.astype(x, np.float64, copy=False), np.astype(xp, np.float64, copy=False)
    fp = np.astype(fp, np.complex128 if fp.dtype.kind == "c" else np.float64, copy=False)
    if xp.ndim != 1 or xp.shape != fp.shape or xp.size == 0:
        raise ValueError(f"xp and fp are vectors of one length, not {xp.shape} and {fp.shape}")
    if period is not None:
        if period == 0:
            raise ValueError("period must not be 0")
        x, xp, fp = _unrolled(x, xp, fp, abs(period))
        left = right = None
    low, high = x < xp[0], x > xp[-1]
    if xp.size == 1:
        inside = fp[0] + x * 0
    else:
        # The number of the piece for each x; for x outside of all pieces, `where` below decides.
        last = np.searchsorted(xp, x, "right").data
        last = namespace(last).clip(last, 1, xp.size - 1)
        start, end, low_value, high_value = xp[last - 1], xp[last], fp[last - 1], fp[last]
        flat = start == end  # of two equal knots, the later one counts
        part = where(flat, 1.0, (x - start) / where(flat, 1.0, end - start))
        inside = low_value + (high_value - low_value) * part
    below, above = fp[0] if left is None else left, fp[-1] if right is None else right
    return where(low, below, where(high, above, inside))


def _unrolled(x: Any, xp: Any, fp: Any, period: float) -> tuple[Any, Any, Any]:
    """Returns x, knots and values within one period, with one more knot at each end."""
    x, xp = x % period, xp % period
    order = np.argsort(xp).data
    xp, fp = xp[order], fp[order]
    knots = concatenate(xp[-1:] - period, xp, xp[:1] + period)
    return x, knots, concatenate(fp[-1:], fp, fp[:1])


@composed(np.gradient)
def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: Any = 1) -> Any:
    if edge_order not in (1, 2):
        raise ValueError(f"edge_order is 1 or 2, not {edge_order}")
    f = alike((f, *varargs))[0]
    f = f if f.dtype.kind in "fc" else np.astype(f, np.float64, copy=False)
    axes = range(f.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    spacings = varargs or (1.0,)
    if len(spacings) == 1 and np.ndim(spacings[0]) == 0:
        spacings = spacings * len(axes)
    if len(spacings) != len(axes):
        raise TypeError(f"{len(spacings)} spacings are given for {len(axes)} axes")
    slopes = [
        _slope(f, k % f.ndim, spacing, edge_order)
        for k, spacing in zip(axes, spacings, strict=True)
    ]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slope(f: Any, axis: int, spacing: Any, edge_order: int) -> Any:
    """Returns the slope of the parabola through each item and its two neighbours.

    It is the mean of the slopes to both neighbours, each weighted with the distance to the other.
    """
    n = f.shape[axis]
    if n < edge_order + 1:
        raise ValueError(f"axis {axis} of {n} items is too short; {edge_order + 1} are needed")

    def part(x: Any, start: int | None, stop: int | None) -> Any:
        return x if np.ndim(x) == 0 else x[along(axis, slice(start, stop))]

    share: Any = 0.5
    if np.ndim(spacing) == 1:
        if np.shape(spacing) != (n,):
            raise ValueError(f"{np.shape(spacing)[0]} coordinates are given for {n} items")
        shape = tuple([-1 if k == axis else 1 for k in range(f.ndim)])
        given: Any = alike((spacing, f))[0]
        coordinates = np.astype(given, np.float64, copy=False)
        spacing = reshape(coordinates[1:] - coordinates[:-1], to=shape)
        share = part(spacing, None, -1) / (part(spacing, None, -1) + part(spacing, 1, None))
    slopes = (part(f, 1, None) - part(f, None, -1)) / spacing
    bend = part(slopes, 1, None) - part(slopes, None, -1)
    inside = part(slopes, None, -1) + bend * share
    first, last = part(slopes, None, 1), part(slopes, -1, None)
    if edge_order == 2:
        first = first - part(bend, None, 1) * part(share, None, 1)
        last = last + part(bend, -1, None) * (1 - part(share, -1, None))
    whole = concatenate(first, inside, last, axis=axis)
    return np.astype(whole, f.dtype, copy=False)


# -- functions of the user, applied along axes ---------------------------------------------------


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
