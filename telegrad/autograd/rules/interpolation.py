"""Piecewise linear interpolation and finite differences on a grid, composed of what has rules.

`interp` has gradients with respect to `x`, the knots `xp` and the values `fp`. At a knot the slope
is that of the piece that begins there, at the last knot that of the last piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import astype, concatenate, reshape, where
from telegrad.autograd.ops.shape import along
from telegrad.autograd.rules.stacking import alike
from telegrad.types import DTypeLike

__all__: list[str] = []


def _cast(x: Any, dtype: DTypeLike) -> Any:
    return x if x.dtype == dtype else astype(x, dtype=np.dtype(dtype))


@composed(np.interp)
def _interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    x, xp, fp = alike((x, xp, fp))
    x, xp = _cast(x, np.float64), _cast(xp, np.float64)
    fp = _cast(fp, np.complex128 if fp.dtype.kind == "c" else np.float64)
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
        # The piece that each x is in; what is outside of all gets a value of its own.
        last = np.searchsorted(xp, x, "right").data
        last = namespace(last).clip(last, 1, xp.size - 1)
        start, end, low_value, high_value = xp[last - 1], xp[last], fp[last - 1], fp[last]
        flat = start == end  # knots that are equal count as the later one
        part = where(flat, 1.0, (x - start) / where(flat, 1.0, end - start))
        inside = low_value + (high_value - low_value) * part
    below, above = fp[0] if left is None else left, fp[-1] if right is None else right
    return where(low, below, where(high, above, inside))


def _unrolled(x: Any, xp: Any, fp: Any, period: float) -> tuple[Any, Any, Any]:
    """Returns what is interpolated within one period, with the neighbour at each end."""
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
    f = f if f.dtype.kind in "fc" else _cast(f, np.float64)
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

    That is the mean of the slopes to both, each weighted with the distance to the other one.
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
        coordinates = _cast(alike((spacing, f))[0], np.float64)
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
    return _cast(whole, f.dtype)
