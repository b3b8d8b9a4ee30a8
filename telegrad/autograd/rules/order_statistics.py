"""Medians and quantiles, with and without what is no number, written with others.

A quantile lies between two items of the sorted numbers; which ones, and how far between, depends on
their count alone. NumPy tells: the same quantile of the ranks 0, 1, ..., n - 1 is that place.

    numbers   2.0  3.0  5.0  9.0
    ranks       0    1    2    3     their 0.4 quantile: 1.2
    result         3.0 + 0.2 * (5.0 - 3.0)

The gradient goes to the items on both sides; among equal ones, to those that sorting puts there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from telegrad.arrays import is_array, namespace, to_host
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed
from telegrad.autograd.grad_mode import is_grad_enabled
from telegrad.autograd.ops import astype, reshape, transpose, where
from telegrad.autograd.rules.axis_order import moveaxis
from telegrad.autograd.rules.selection import chosen, plain
from telegrad.autograd.rules.weighting import weights_like
from telegrad.autograd.tensor import Tensor
from telegrad.errors import AutogradError
from telegrad.types import Array

__all__: list[str] = []


def _last(a: Any, axes: tuple[int, ...]) -> Any:
    """Returns `a` with `axes` as one, the last."""
    kept = tuple([k for k in range(a.ndim) if k not in axes])
    turned = transpose(a, axes=(*kept, *axes))
    lengths = turned.shape[: len(kept)]
    return reshape(turned, to=(*lengths, math.prod(turned.shape[len(kept) :])))


def _order(data: Array, low: Array, high: Array) -> Array:
    """Returns indices that sort the last axis, as far as the places asked for need it."""
    xp = namespace(data)
    if low.ndim > 1 or xp is not np:
        order: Array = xp.argsort(data, axis=-1)
    else:
        places = np.unique(np.concatenate([low, high, [data.shape[-1] - 1]]))
        order = np.argpartition(data, places, axis=-1)
    return order


def _between(lines: Any, places: Array, exact: Any, bad: bool) -> Any:
    """Returns what stands at fractional places of the sorted last axis.

    Args:
        lines: (..., n).
        places: (k,) or (..., k), from 0 to n - 1.
        exact: The same as a Tensor, where they need a gradient; else None.
        bad: Whether a line with what is no number has no quantile.

    Returns:
        (..., k)
    """
    xp = namespace(lines.data)
    low, high = np.floor(places).astype(np.intp), np.ceil(places).astype(np.intp)
    if exact is not None:  # at an item the slope of the piece that begins there; it must have one
        low = np.minimum(low, max(lines.shape[-1] - 2, 0))
        high = np.minimum(low + 1, lines.shape[-1] - 1)
    order = _order(lines.data, low, high)
    shape = (*lines.shape[:-1], places.shape[-1])

    def at(rank: Array) -> Any:
        index = xp.broadcast_to(xp.asarray(rank), shape)
        items = xp.take_along_axis(order, index, -1)
        return (chosen if shape[-1] == 1 else np.take_along_axis)(lines, items, axis=-1)

    below = at(low)
    result = below
    if exact is not None or (low != high).any():
        part = xp.asarray(places - low) if exact is None else exact - xp.asarray(low)
        with np.errstate(invalid="ignore"):  # inf - inf where nothing is between
            rise = at(high) - below
        used = part > 0 if exact is None else (part.data > 0) | xp.isfinite(rise.data)
        result = below + where(used, rise, 0.0) * astype(part, dtype=lines.dtype)
    if bad:
        worst = chosen(lines, order[..., -1:], axis=-1)
        none = xp.isnan(worst.data)
        result = where(none, worst, result) if none.any() else result
    return result


def _counts(data: Array, skip: bool) -> Any:
    """Returns how many items a line has; with `skip`, in each one how many are numbers."""
    if not skip:
        return data.shape[-1]
    xp = namespace(data)
    return xp.maximum((~xp.isnan(data)).sum(axis=-1), 1)  # of a line without, what it has instead


def _places_of_counts(counts: Any, quantile: Callable[..., Any]) -> Array:
    """Returns the places among as many sorted items."""
    if isinstance(counts, int):
        places: Array = quantile(np.arange(float(counts)))
        return places
    kinds, which = np.unique(to_host(counts), return_inverse=True)
    table = np.stack([quantile(np.arange(float(n))) for n in kinds.tolist()])
    return np.asarray(table[which.reshape(counts.shape)])


def _places_of_weights(data: Array, weights: Array, quantile: Callable[..., Any]) -> Array:
    data = to_host(data)
    ranks = data.argsort(axis=-1).argsort(axis=-1).astype(np.float64)
    ranks = np.where(np.isnan(data), data, ranks)
    places = np.moveaxis(quantile(ranks, axis=-1, weights=to_host(weights)), 0, -1)
    return np.asarray(np.nan_to_num(places))


def _weights_of_lines(a: Tensor, weights: Any, axis: Any, axes: tuple[int, ...]) -> Array:
    share = as_tensor(weights_like(a, as_tensor(plain(weights, a)), axis)).data
    lines: Array = _last(namespace(share).broadcast_to(share, a.shape), axes)
    return lines


def _is_active(q: Any) -> bool:
    return isinstance(q, Tensor) and q.requires_grad and is_grad_enabled()


def _exact_places(q: Tensor, scale: float, counts: Any) -> Any:
    """Returns places by the method "linear", in terms of `q`."""
    last = counts - 1 if isinstance(counts, int) else counts[..., None] - 1
    return reshape(astype(q, dtype=np.float64), to=(-1,)) / scale * last


def _quantile(
    function: Callable[..., Any],
    a: Any,
    q: Any,
    axis: Any,
    method: str,
    keepdims: Any,
    weights: Any,
) -> Any:
    """Returns what `function` does, one of NumPy's for quantiles; its name says the rest."""
    skip = function.__name__.startswith("nan")
    scale = 100.0 if function in (np.percentile, np.nanpercentile) else 1.0
    active = _is_active(q)
    if active and (method != "linear" or weights is not None):
        raise AutogradError(
            f"{function.__name__} has a gradient with respect to q for method='linear' without "
            "weights alone; pass t.detach()"
        )
    a = as_tensor(a)
    asked = q.data if isinstance(q, Tensor) else q
    if not a.size:
        nothing = as_tensor(_of_nothing(function, a.data, asked, axis, method, keepdims))
        return nothing + astype(np.sum(a), dtype=nothing.dtype)  # 0, in terms of `a`
    asked = to_host(asked) if is_array(asked) else asked
    parts = np.asarray(asked) / scale
    dtype = _dtype(function, a.dtype, asked, method)
    axes = tuple(range(a.ndim)) if axis is None else normalize_axis_tuple(axis, a.ndim)
    lines = _last(astype(a, dtype=dtype) if a.dtype != dtype else a, axes)
    of_places: Callable[..., Any] = np.nanquantile if skip and weights is not None else np.quantile

    def quantile(ranks: Array, **options: Any) -> Any:
        return of_places(ranks, parts.reshape(-1), method=method, **options)

    exact = None
    if weights is None:
        counts = _counts(lines.data, skip)
        places = _places_of_counts(counts, quantile)
        exact = _exact_places(q, scale, counts) if active else None
    else:
        share = _weights_of_lines(a, weights, axis, axes)
        places = _places_of_weights(lines.data, share, quantile)
    found = moveaxis(_between(lines, places, exact, not skip), -1, 0)
    rest = tuple(
        [1 if k in axes else n for k, n in enumerate(a.shape) if keepdims or k not in axes]
    )
    return reshape(found, to=(*parts.shape, *rest))


def _of_nothing(
    function: Callable[..., Any], data: Array, q: Any, axis: Any, method: str, keepdims: bool
) -> Any:
    if function in (np.median, np.nanmedian):
        return function(data, axis, keepdims=keepdims)
    return function(data, q, axis, method=method, keepdims=keepdims)


def _dtype(function: Callable[..., Any], dtype: Any, q: Any, method: str) -> Any:
    one = np.ones(1, dtype)
    middle = function in (np.median, np.nanmedian)
    return (function(one) if middle else function(one, q, method=method)).dtype


def _enter_middle(function: Callable[..., Any]) -> None:
    @composed(function)
    def middle(
        a: Any,
        axis: Any = None,
        out: None = None,
        overwrite_input: bool = False,
        keepdims: bool = False,
    ) -> Any:
        return _quantile(function, a, 0.5, axis, "linear", keepdims, None)


def _enter_parts(function: Callable[..., Any]) -> None:
    @composed(function)
    def at_parts(
        a: Any,
        q: Any,
        axis: Any = None,
        out: None = None,
        overwrite_input: bool = False,
        method: str = "linear",
        keepdims: bool = False,
        *,
        weights: Any = None,
    ) -> Any:
        return _quantile(function, a, q, axis, method, keepdims, weights)


_enter_middle(np.median)
_enter_middle(np.nanmedian)
_enter_parts(np.quantile)
_enter_parts(np.nanquantile)
_enter_parts(np.percentile)
_enter_parts(np.nanpercentile)
