"""Pooling over windows of the last two axes, and what its gradients need.

Each place in a window is one strided part of the array (`Windows.parts`), so a window of k items
costs k passes over arrays of the size of the result, and the windows are never laid out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import namespace
from telegrad.kernels.windows import Windows
from telegrad.types import Array, Shape

__all__ = ["max_pool2d", "mean_pool2d", "pick_places", "spread_means", "spread_places"]


def max_pool2d(x: Array, *, windows: Windows) -> tuple[Array, Array]:
    """Returns the largest item of each window, and its place; the first where several are equal.

    A NaN in a window is its largest item. What is padding never wins.

    Args:
        x: Floating-point, of shape (..., rows, columns).
        windows: No more padding than half a window, so that each has an item.

    Returns:
        Both of shape (..., *windows.counts(x.shape)); places as unsigned integers, row by row.
    """
    xp = namespace(x)
    padded: Any = windows.pad(x, fill=-np.inf)
    inner = windows._replace(padding=((0, 0), (0, 0)))
    shape = (*x.shape[:-2], *windows.counts(x.shape))
    largest: Any = None
    places: Any = xp.zeros(shape, np.min_scalar_type(windows.size[0] * windows.size[1]))
    for part in inner.parts(padded.shape):
        items = padded[part.inside]
        if largest is None:
            largest = xp.array(items, order="C")
            continue
        # Places rise, so the larger of two is the later one.
        won = (items > largest).astype(places.dtype)
        won *= part.place
        xp.maximum(places, won, out=places)
        xp.maximum(largest, items, out=largest)
    return largest, places


def spread_places(gradient: Array, places: Array, *, windows: Windows, shape: Shape) -> Array:
    """Returns zeros of `shape` with each gradient added where its window's place is."""
    xp = namespace(gradient)
    result: Any = xp.zeros(shape, gradient.dtype)
    for part in windows.parts(shape):
        won = places[part.windows] == part.place
        if windows.apart:
            xp.multiply(gradient[part.windows], won, out=result[part.inside])
        else:
            result[part.inside] += gradient[part.windows] * won
    return result  # type: ignore[no-any-return]


def pick_places(x: Array, places: Array, *, windows: Windows) -> Array:
    """Returns the item of each window that is at its place; the transpose of `spread_places`."""
    result: Any = namespace(x).zeros(places.shape, x.dtype)
    for part in windows.parts(x.shape):
        result[part.windows] += x[part.inside] * (places[part.windows] == part.place)
    return result  # type: ignore[no-any-return]


def mean_pool2d(x: Array, *, windows: Windows, count_padding: bool = True) -> Array:
    """Returns the mean of each window.

    Args:
        x: Floating-point, of shape (..., rows, columns).
        windows: Where they lie.
        count_padding: Whether padding counts as zeros, or not at all.
    """
    shape = (*x.shape[:-2], *windows.counts(x.shape))
    result: Any = namespace(x).zeros(shape, x.dtype)
    for part in windows.parts(x.shape):
        result[part.windows] += x[part.inside]
    result /= _counts(x, windows, x.shape, count_padding=count_padding)
    return result  # type: ignore[no-any-return]


def spread_means(
    gradient: Array, *, windows: Windows, shape: Shape, count_padding: bool = True
) -> Array:
    """Returns the gradient of the input of `mean_pool2d`, which had `shape`: its transpose."""
    result: Any = namespace(gradient).zeros(shape, gradient.dtype)
    share: Any = gradient / _counts(gradient, windows, shape, count_padding=count_padding)
    for part in windows.parts(shape):
        if windows.apart:
            result[part.inside] = share[part.windows]
        else:
            result[part.inside] += share[part.windows]
    return result  # type: ignore[no-any-return]


def _counts(a: Array, windows: Windows, shape: Shape, *, count_padding: bool) -> Any:
    if count_padding or not windows.padded:
        return windows.size[0] * windows.size[1]
    counts: Any = namespace(a).zeros(windows.counts(shape), a.dtype)
    for part in windows.parts(shape[-2:]):
        counts[part.windows] += 1
    return counts
