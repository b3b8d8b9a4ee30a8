"""Pooling over windows of the last two axes, and the kernels of its gradients.

Each place in a window is one strided part of the array (`Windows.parts`). A window of k items
therefore costs k passes over arrays of the size of the result, and no copy of the windows is made.
The largest items of CuPy arrays, and their gradient, take one launch each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import computing_dtype, namespace
from telegrad.kernels.windows import Windows, launch_windows, on_kernels
from telegrad.types import Array, Shape


def max_pool2d(x: Array, *, windows: Windows) -> tuple[Array, Array]:
    """Returns the largest item of each window, and its place; the first one if several are equal.

    A NaN counts as the largest item of its window. Padding is never the largest item.

    Args:
        x: Floating-point numbers, of shape (..., rows, columns).
        windows: The windows; padded by at most half a window, so that each window has an item.

    Returns:
        The items and the places, both of shape (..., *windows.counts(x.shape)). A place is an
        unsigned integer that counts the items of a window row by row.
    """
    xp = namespace(x)
    shape = (*x.shape[:-2], *windows.counts(x.shape))
    kind = np.min_scalar_type(windows.size[0] * windows.size[1])
    if on_kernels(x):
        best, where = xp.empty(shape, x.dtype), xp.empty(shape, kind)
        launch_windows("max_windows", windows, x.shape, x, best, where, over=best, PLACE=kind)
        return best, where
    padded: Any = windows.pad(x, fill=-np.inf)
    inner = windows._replace(padding=((0, 0), (0, 0)))
    largest: Any = None
    places: Any = xp.zeros(shape, kind)
    for part in inner.parts(padded.shape):
        items = padded[part.inside]
        if largest is None:
            largest = xp.array(items, order="C")
            continue
        # Places go up from part to part, so the larger place is that of the later winner.
        won = (items > largest).astype(places.dtype)
        won *= part.place
        xp.maximum(places, won, out=places)
        xp.maximum(largest, items, out=largest)
    return largest, places


def spread_places(gradient: Array, places: Array, *, windows: Windows, into: Shape) -> Array:
    """Returns zeros of `into` plus each gradient at the place of its window."""
    xp = namespace(gradient)
    if on_kernels(gradient):
        spread: Array = xp.empty(into, gradient.dtype)
        arrays = gradient, places, spread
        launch_windows("spread_windows", windows, into, *arrays, over=spread, PLACE=places.dtype)
        return spread
    result: Any = xp.zeros(into, computing_dtype(gradient.dtype))
    # A product makes NaN of infinities, but takes a tenth of the time of NumPy's `where`.
    finite = xp is np and bool(np.isfinite(gradient).all())
    for part in windows.parts(into):
        won = places[part.windows] == part.place
        if finite and windows.apart:
            xp.multiply(gradient[part.windows], won, out=result[part.inside])
            continue
        items = gradient[part.windows]
        items = items * won if finite else xp.where(won, items, xp.zeros_like(items))
        result[part.inside] += items
    return result.astype(gradient.dtype, copy=False)  # type: ignore[no-any-return]


def pick_places(x: Array, places: Array, *, windows: Windows) -> Array:
    """Returns the item of each window at its given place; the transpose of `spread_places`."""
    xp = namespace(x)
    result: Any = xp.zeros(places.shape, x.dtype)
    for part in windows.parts(x.shape):
        won = places[part.windows] == part.place
        result[part.windows] = xp.where(won, x[part.inside], result[part.windows])
    return result  # type: ignore[no-any-return]


def mean_pool2d(x: Array, *, windows: Windows, count_padding: bool = True) -> Array:
    """Returns the mean of each window.

    Args:
        x: Floating-point numbers, of shape (..., rows, columns).
        windows: The windows.
        count_padding: True to count padding as zeros, False to leave it out of the mean.
    """
    shape = (*x.shape[:-2], *windows.counts(x.shape))
    result: Any = namespace(x).zeros(shape, computing_dtype(x.dtype))
    for part in windows.parts(x.shape):
        result[part.windows] += x[part.inside]
    result /= _counts(x, windows, x.shape, count_padding=count_padding)
    return result.astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def spread_means(
    gradient: Array, *, windows: Windows, into: Shape, count_padding: bool = True
) -> Array:
    """Returns the gradient of the input of `mean_pool2d`, which has `into`; its transpose."""
    wide: Any = gradient.astype(computing_dtype(gradient.dtype), copy=False)
    result: Any = namespace(gradient).zeros(into, wide.dtype)
    share: Any = wide / _counts(gradient, windows, into, count_padding=count_padding)
    for part in windows.parts(into):
        if windows.apart:
            result[part.inside] = share[part.windows]
        else:
            result[part.inside] += share[part.windows]
    return result.astype(gradient.dtype, copy=False)  # type: ignore[no-any-return]


def _counts(a: Array, windows: Windows, shape: Shape, *, count_padding: bool) -> Any:
    if count_padding or not windows.padded:
        return windows.size[0] * windows.size[1]
    counts: Any = namespace(a).zeros(windows.counts(shape), computing_dtype(a.dtype))
    for part in windows.parts(shape[-2:]):
        counts[part.windows] += 1
    return counts
