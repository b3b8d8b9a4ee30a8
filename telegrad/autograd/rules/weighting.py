"""Averages and counts with weights, with their rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from telegrad.arrays import namespace
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import Operation, composed, numpy_function, primitive
from telegrad.autograd.ops import broadcast_to, getitem, reshape, transpose, where
from telegrad.autograd.rules.stacking import alike
from telegrad.types import Array

__all__ = ["weights_like"]


def weights_like(a: Any, weights: Any, axis: Any) -> Any:
    """Returns weights of the axes `axis` so that they broadcast with `a`.

    Raises:
        TypeError: Their shape is not that of `a`, and no axis is given.
        ValueError: Their shape is not that of these axes.
    """
    if weights.shape == a.shape:
        return weights
    if axis is None:
        raise TypeError("weights of another shape than a need an axis")
    axes = normalize_axis_tuple(axis, a.ndim)
    if weights.shape != tuple([a.shape[k] for k in axes]):
        raise ValueError(
            f"weights of shape {weights.shape} are not of the axes {axis} of {a.shape}"
        )
    ordered = transpose(weights, axes=tuple(sorted(range(len(axes)), key=axes.__getitem__)))
    return reshape(ordered, to=tuple([n if k in axes else 1 for k, n in enumerate(a.shape)]))


@composed(np.average)
def _average(
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    over = {"axis": axis, "keepdims": keepdims}
    if weights is None:
        a = as_tensor(a)
        result = np.mean(a, **over)
        total = np.full_like(result, a.size / max(result.size, 1))
        return (result, total) if returned else result
    a, weights = alike((a, weights))
    kinds = (a.dtype, weights.dtype, *([np.float64] if a.dtype.kind in "biu" else []))
    dtype = np.result_type(*kinds)
    a, share = np.astype(a, dtype), np.astype(weights_like(a, weights, axis), dtype)
    whole = broadcast_to(share, to=a.shape) if share.ndim == a.ndim else share
    total = np.sum(whole, **over)
    if (total == 0.0).any():
        raise ZeroDivisionError("the weights of an average add up to 0")
    result = np.sum(a * share, **over) / total
    return (result, total) if returned else result


def _sums(weights: Any, x: Any, *, minlength: int = 0) -> Array:
    sums: Array = namespace(weights).bincount(x, weights, minlength)
    return sums


bin_sums: Operation  # declared, as mypy wants the lines below in one block

# fmt: off
bin_sums = primitive("bincount", _sums, "weights x", options={"minlength": 0}, weights=lambda g, x: getitem(g, index=x))
# fmt: on


@composed(np.bincount)
def _bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    if weights is None:
        numbers = as_tensor(x).data
        return as_tensor(namespace(numbers).bincount(numbers, minlength=minlength))
    x, weights = alike((x, weights))
    return bin_sums(weights, x, minlength=minlength)


def _of_bins(g: Any, hist: Any, a: Any, bin_edges: Any, weights: Any, density: Any) -> Any:
    """The gradient of weights from that of what they add up to in each bin."""
    if g[0] is None:
        return None
    g = g[0]
    edges, items = as_tensor(bin_edges).data, as_tensor(a).data
    xp = namespace(edges)
    places = xp.searchsorted(edges, items, side="right") - 1
    places = xp.where(items == edges[-1], edges.size - 2, places)
    inside = (places >= 0) & (places < edges.size - 1)
    if density:
        total = np.sum(where(inside, weights, 0.0))
        g = (g / xp.diff(edges) - np.sum(g * hist)) / total
    return where(inside, getitem(g, index=xp.where(inside, places, 0)), 0.0)


_BINS: Final = {"bins": 10, "range": None, "density": None}

# fmt: off
histogram = numpy_function(np.histogram, "a", arrays="weights", outputs="hist bin_edges", options=_BINS,
                           weights=_of_bins)
# fmt: on
