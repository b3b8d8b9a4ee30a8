"""Cumulative sums and products, variances, quantiles and other reductions, with gradient rules.

The gradient of an extremum is divided equally among the items that are equal to it. The gradient of
a standard deviation that is 0 is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from telegrad.arrays import (
    array_beside,
    computing_dtype,
    is_array,
    namespace,
    reduction_twin,
    to_host,
)
from telegrad.autograd.extend import Operation, composed, numpy_function, primitive
from telegrad.autograd.graph.grad_mode import is_grad_enabled
from telegrad.autograd.graph.user_warning import warn_user
from telegrad.autograd.ops.axes import moveaxis
from telegrad.autograd.ops.elementwise import where
from telegrad.autograd.ops.elementwise import where as choose
from telegrad.autograd.ops.joining import alike
from telegrad.autograd.ops.reduction import mean
from telegrad.autograd.ops.selection import plain, take_along_axis
from telegrad.autograd.ops.shape import (
    along,
    astype,
    axes_of,
    broadcast_to,
    concatenate,
    count,
    getitem,
    kept,
    masked,
    ravel,
    reshape,
    shared,
    spread,
    swapaxes,
    transpose,
)
from telegrad.autograd.tensor.creation import as_tensor
from telegrad.autograd.tensor.tensor import Tensor, array_of
from telegrad.errors import AutogradError
from telegrad.types import Array, Shape

# -- cumulative sums and products ----------------------------------------------------------------


def _recurrence(a: Any, b: Any) -> Array:
    """Returns h with h[i] = a[i] * h[i - 1] + b[i] along the last axis, h[-1] = 0."""
    xp = namespace(a, b)
    a, b = xp.broadcast_arrays(a, b)
    h: Array = xp.array(b, dtype=xp.result_type(a, b))
    for i in range(1, h.shape[-1]):
        h[..., i] += a[..., i] * h[..., i - 1]
    return h


def _later(x: Any, first: float) -> Any:
    """Moves all items by one to the end of the last axis, with `first` in front."""
    edge = np.full_like(x[..., :1], first)
    return concatenate(edge, x[..., :-1], axis=-1)


def _sooner(x: Any) -> Any:
    edge = np.zeros_like(x[..., :1])
    return concatenate(x[..., 1:], edge, axis=-1)


def _turned(x: Any) -> Any:
    return x[..., ::-1]


def _upstream(g: Any, a: Any) -> Any:
    """Returns the whole gradient of each h[i]: its own part `g` and the part from h[i + 1]."""
    return _turned(recurrence(_turned(_sooner(a)), _turned(g)))


def others(a: Any) -> Any:
    """Returns, for each item of the last axis, the product of all others; it allows zeros."""
    before = cumprod(_later(a, 1.0), axis=-1)
    after = cumprod(_later(_turned(a), 1.0), axis=-1)
    return before * _turned(after)


def _along(rule: Any, g: Any, axis: Any, shape: Shape, *values: Any) -> Any:
    """Runs a rule for the last axis along another axis; None means along all items in a row."""
    if axis is None or len(shape) < 2:
        flat = [reshape(x, to=(-1 if x.size else 0,)) for x in (g, *values)]
        return reshape(rule(*flat), to=shape)
    last = [swapaxes(x, axis1=axis, axis2=-1) for x in (g, *values)]
    return swapaxes(rule(*last), axis1=axis, axis2=-1)


def _of_sums(g: Any) -> Any:
    return _turned(cumsum(_turned(g), axis=-1, dtype=computing_dtype(g.dtype)))


def _divides(y: Any) -> bool:
    """Returns True if products divided by their factors are the products of the other factors."""
    return bool(((y != 0) & np.isfinite(y)).all())


def _of_products(g: Any, a: Any, y: Any) -> Any:
    if not _divides(y):
        return _upstream(g, a) * _later(y, 1.0)
    return _of_sums(g * y) / a


_ALONG: Final = {"axis": None, "dtype": None}
_H: Final = "holomorphic"

# fmt: off
cumsum: Operation = numpy_function(np.cumsum, "a", options=_ALONG, complex_rule=_H,
                                   a=lambda g, shape, axis: _along(_of_sums, g, axis, shape))
cumprod: Operation = numpy_function(
    np.cumprod, "a", options=_ALONG, complex_rule=_H,
    a=lambda g, a, y, axis: _along(_of_products, g, axis, a.shape, a, y))
recurrence: Operation = primitive("recurrence", _recurrence, "a b", complex_rule=_H,
                                  a=lambda g, a, y: _upstream(g, a) * _later(y, 0.0),
                                  b=_upstream)
# fmt: on


def _including(function: Any, first: float, x: Any, axis: Any, dtype: Any, initial: bool) -> Any:
    if isinstance(x, (list, tuple)):
        raise TypeError(
            f"{function.__name__} takes one array or tensor; np.stack makes it of a list"
        )
    if x.ndim > 1 and axis is None:
        raise ValueError("axis must be given for an array of more than one dimension")
    axis = 0 if axis is None else axis
    result = function(np.atleast_1d(x) if x.ndim == 0 else x, axis=axis, dtype=dtype)
    if not initial:
        return result
    axis %= result.ndim
    shape = tuple([1 if k == axis else n for k, n in enumerate(result.shape)])
    start = namespace(result.data).full_like(result.data, first, shape=shape)
    return concatenate(start, result, axis=axis)


# fmt: off
composed(np.cumulative_sum)(lambda x, /, *, axis=None, dtype=None, include_initial=False:
    _including(np.cumsum, 0.0, x, axis, dtype, include_initial))
composed(np.cumulative_prod)(lambda x, /, *, axis=None, dtype=None, include_initial=False:
    _including(np.cumprod, 1.0, x, axis, dtype, include_initial))
# fmt: on


# -- products, variances and standard deviations -------------------------------------------------


def _distance(a: Any, axis: Any, where: Any) -> Any:
    """Returns the distance of each item from the mean; 0 where `where` is false."""
    counted = {} if where is None else {"where": where}
    average = mean(a, axis=axis, keepdims=True, **counted)
    return masked(a - average, where)


def _freedom(shape: Shape, axis: Any, where: Any, ddof: Any, correction: Any) -> Any:
    less = ddof if correction is None else correction
    number = count(shape, axis, where) - less
    return max(number, 0) if isinstance(number, (int, float)) else np.maximum(number, 0)


def _of_variance(g: Any, a: Any, axis: Any, where: Any, ddof: Any, correction: Any) -> Any:
    part = shared(kept(g, a.shape, axis), _freedom(a.shape, axis, where, ddof, correction))
    return masked(2 * part * _distance(a, axis, where), where)


def _of_deviation(g: Any, y: Any, a: Any, axis: Any, where: Any, ddof: Any, correction: Any) -> Any:
    still = y == 0
    part = choose(still, 0.0, g / choose(still, 1.0, y))
    return _of_variance(part, a, axis, where, ddof, correction) / 2


def _of_product(g: Any, y: Any, a: Any, axis: Any, where: Any, initial: Any) -> Any:
    if where is not None:
        a = choose(where, a, 1.0)
    if _divides(y):
        return masked(spread(g * y, a.shape, axis) / a, where)
    if initial is not None:
        g = g * initial
    axes = axes_of(axis, a.ndim)
    order = (*[k for k in range(a.ndim) if k not in axes], *axes)
    turned = transpose(a, axes=order)
    lengths = turned.shape[: a.ndim - len(axes)]
    product = reshape(others(reshape(turned, to=(*lengths, -1 if a.size else 0))), to=turned.shape)
    back = transpose(product, axes=tuple(np.argsort(order).tolist()))
    return masked(kept(g, a.shape, axis) * back, where)


_TYPED: Final = {"axis": None, "keepdims": False, "dtype": None}
_SPREAD: Final = {**_TYPED, "ddof": 0, "correction": None}

# fmt: off
prod       = numpy_function(np.prod, "a", arrays="where", kernels={"cupy": reduction_twin("prod")},
                            options={**_TYPED, "initial": 1}, complex_rule=_H, a=_of_product)
var        = numpy_function(np.var, "a", arrays="where", kernels={"cupy": reduction_twin("var")},
                            options=_SPREAD, complex_rule="own", a=_of_variance)
std        = numpy_function(np.std, "a", arrays="where", kernels={"cupy": reduction_twin("std")},
                            options=_SPREAD, complex_rule="own", a=_of_deviation)
# fmt: on


# fmt: off
composed(np.ptp)(lambda a, *args, **options:
    np.max(a, *args, **options) - np.min(a, *args, **options))
# fmt: on


# -- reductions that skip NaN, made of those that do not ------------------------------------------
#
# Items that are skipped get gradient 0. Each hands its other arguments on to the one that does not
# skip them, which takes the same.


def _with_neutral(function: Callable[..., Any], whole: Callable[..., Any], neutral: float) -> None:
    composed(function)(
        lambda a, *args, **options: whole(choose(np.isnan(a), neutral, a), *args, **options)
    )


def _of_present(function: Callable[..., Any], whole: Callable[..., Any]) -> None:
    @composed(function)
    def of_numbers(a: Any, *args: Any, where: Any = None, **options: Any) -> Any:
        none = np.isnan(a)
        present = ~none if where is None else ~none & where
        return whole(choose(none, 0.0, a), *args, where=present, **options)


_with_neutral(np.nansum, np.sum, 0.0)
_with_neutral(np.nanprod, np.prod, 1.0)
_with_neutral(np.nancumsum, np.cumsum, 0.0)
_with_neutral(np.nancumprod, np.cumprod, 1.0)
_of_present(np.nanmean, np.mean)
_of_present(np.nanvar, np.var)
_of_present(np.nanstd, np.std)


# -- covariances and correlations ----------------------------------------------------------------


def _variables(m: Any, rowvar: bool, dtype: Any, *, alone: bool) -> Any:
    """Returns a matrix with a row for each variable."""
    if np.ndim(m) > 2:
        raise ValueError(f"cov of arrays of one or two axes, not of shape {np.shape(m)}")
    rows = reshape(m, to=(1, *m.shape)) if m.ndim == 1 else m
    turned = not rowvar and (m.ndim != 1 if alone else rows.shape[0] != 1)
    return astype(np.transpose(rows) if turned else rows, dtype=dtype)


@composed(np.cov)
def _cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    first = next(x for x in (m, y, fweights, aweights) if isinstance(x, Tensor)).data
    m, y, fweights, aweights = (
        x if x is None or isinstance(x, Tensor) else Tensor(array_beside(x, first))
        for x in (m, y, fweights, aweights)
    )
    dtype = dtype or np.result_type(np.float64, *(x.dtype for x in (m, y) if x is not None))
    rows = _variables(m, rowvar, dtype, alone=True)
    if y is not None:
        rows = concatenate(rows, _variables(y, rowvar, dtype, alone=False), axis=0)
    less = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        number = rows.shape[1] - less
        centred = rows - rows.mean(axis=1, keepdims=True)
        weighted = centred
    else:
        weights = [w for w in (fweights, aweights) if w is not None]
        product = weights[0] if len(weights) == 1 else weights[0] * weights[1]
        total = product.sum()
        each = 1 if aweights is None else (product * aweights).sum() / total
        number = total - less * each
        centred = rows - (rows * product).sum(axis=1, keepdims=True) / total
        weighted = centred * product
    if number <= 0:
        warn_user("there are no degrees of freedom left", RuntimeWarning)
        number = 0.0
    return np.squeeze(centred @ np.conjugate(np.transpose(weighted)) / number)


@composed(np.corrcoef)
def _corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    covariance = np.cov(x, y, rowvar, dtype=dtype)
    if covariance.ndim == 0:
        return covariance / covariance
    deviation = np.sqrt(np.real(np.diagonal(covariance)))
    found = covariance / deviation[:, None] / deviation
    real = np.clip(np.real(found), -1, 1)
    return real + 1j * np.clip(np.imag(found), -1, 1) if found.dtype.kind == "c" else real


# -- weighted averages, bin counts and histograms ------------------------------------------------


def weights_like(a: Any, weights: Any, axis: Any) -> Any:
    """Returns weights for the axes `axis`, in a shape that broadcasts with `a`.

    Raises:
        TypeError: The shape of the weights is not that of `a`, and `axis` is None.
        ValueError: The shape of the weights is not that of the axes.
    """
    if weights.shape == a.shape:
        return weights
    if axis is None:
        raise TypeError("the shapes of weights and a differ; pass axis")
    axes = normalize_axis_tuple(axis, a.ndim)
    if weights.shape != tuple([a.shape[k] for k in axes]):
        raise ValueError(
            f"weights of shape {weights.shape} do not fit the axes {axis} of shape {a.shape}"
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


# fmt: off
bin_sums = primitive(
    "bincount", lambda weights, x, **least: namespace(weights).bincount(x, weights, **least),
    "weights x", options={"minlength": 0}, weights=lambda g, x: getitem(g, index=x))
# fmt: on


@composed(np.bincount)
def _bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    if weights is None:
        numbers = as_tensor(x).data
        return as_tensor(namespace(numbers).bincount(numbers, minlength=minlength))
    x, weights = alike((x, weights))
    return bin_sums(weights, x, minlength=minlength)


def _of_bins(g: Any, hist: Any, a: Any, bin_edges: Any, weights: Any, density: Any) -> Any:
    """Returns the gradient of the weights, given that of their sum in each bin."""
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
histogram = numpy_function(np.histogram, "a", arrays="weights", outputs="hist bin_edges",
                           options=_BINS, weights=_of_bins)
# fmt: on


# -- medians and quantiles, with and without NaN -------------------------------------------------
#
# A quantile lies between two of the sorted items. Which two, and how far between them, depends on
# the number of items only. NumPy computes that place: it is the same quantile of the ranks 0, 1,
# ..., n - 1.
#
#     numbers   2.0  3.0  5.0  9.0
#     ranks       0    1    2    3     their 0.4 quantile: 1.2
#     result         3.0 + 0.2 * (5.0 - 3.0)
#
# The gradient goes to the items on both sides; among equal items, to those that sorting puts there.


def _last(a: Any, axes: tuple[int, ...]) -> Any:
    """Returns `a` with `axes` merged into one axis, the last."""
    kept = tuple([k for k in range(a.ndim) if k not in axes])
    turned = transpose(a, axes=(*kept, *axes))
    lengths = turned.shape[: len(kept)]
    return reshape(turned, to=(*lengths, math.prod(turned.shape[len(kept) :])))


def _order(data: Array, low: Array, high: Array) -> Array:
    """Returns indices that sort the last axis, at least at the places `low` and `high`."""
    xp = namespace(data)
    if low.ndim > 1 or xp is not np:
        order: Array = xp.argsort(data, axis=-1)
    else:
        places = np.unique(np.concatenate([low, high, [data.shape[-1] - 1]]))
        order = np.argpartition(data, places, axis=-1)
    return order


def _between(lines: Any, places: Array, exact: Any, bad: bool) -> Any:
    """Returns the values at fractional places of the sorted last axis.

    Args:
        lines: The items, shape (..., n).
        places: The places from 0 to n - 1, shape (k,) or (..., k).
        exact: The places as a Tensor if they need a gradient, else None.
        bad: True if a line that holds NaN has the quantile NaN.

    Returns:
        The values, shape (..., k).
    """
    xp = namespace(lines.data)
    low, high = np.floor(places).astype(np.intp), np.ceil(places).astype(np.intp)
    if exact is not None:  # at an item, the slope is that of the piece that begins there
        low = np.minimum(low, max(lines.shape[-1] - 2, 0))
        high = np.minimum(low + 1, lines.shape[-1] - 1)
    order = _order(lines.data, low, high)
    shape = (*lines.shape[:-1], places.shape[-1])

    def at(rank: Array) -> Any:
        index = xp.broadcast_to(xp.asarray(rank), shape)
        items = xp.take_along_axis(order, index, -1)
        return take_along_axis(lines, items, axis=-1)

    below = at(low)
    result = below
    if exact is not None or (low != high).any():
        part = xp.asarray(places - low) if exact is None else exact - xp.asarray(low)
        with np.errstate(invalid="ignore"):  # inf - inf between two infinite items
            rise = at(high) - below
        used = part > 0 if exact is None else (part.data > 0) | xp.isfinite(rise.data)
        result = below + where(used, rise, 0.0) * astype(part, dtype=lines.dtype)
    if bad:
        worst = take_along_axis(lines, order[..., -1:], axis=-1)
        none = xp.isnan(worst.data)
        result = where(none, worst, result) if none.any() else result
    return result


def _counts(data: Array, skip: bool) -> Any:
    """Returns the length of the lines; with `skip`, for each line its number of non-NaN items."""
    if not skip:
        return data.shape[-1]
    xp = namespace(data)
    return xp.maximum((~xp.isnan(data)).sum(axis=-1), 1)  # a line of NaN counts as one item


def _places_of_counts(counts: Any, quantile: Callable[..., Any]) -> Array:
    """Returns the places among `counts` sorted items."""
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


def _exact_places(q: Tensor, scale: float, counts: Any) -> Any:
    """Returns the places of the method "linear" as a function of `q`."""
    last = counts - 1 if isinstance(counts, int) else counts[..., None] - 1
    return reshape(astype(q, dtype=np.float64), to=(-1,)) / scale * last


def _quantile(
    function: Callable[..., Any],
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
    """Computes one of NumPy's quantiles; its name tells the unit of q and the role of NaN."""
    skip = function.__name__.startswith("nan")
    scale = 100.0 if function in (np.percentile, np.nanpercentile) else 1.0
    active = isinstance(q, Tensor) and q.requires_grad and is_grad_enabled()
    if active and (method != "linear" or weights is not None):
        raise AutogradError(
            f"{function.__name__} has a gradient with respect to q only for method='linear' "
            "without weights; pass t.detach()"
        )
    a = as_tensor(a)
    asked = array_of(q)
    if not a.size:
        nothing = as_tensor(_of_nothing(function, a.data, asked, axis, method, keepdims))
        return nothing + astype(np.sum(a), dtype=nothing.dtype)  # adds 0, to connect it with `a`
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


def _median(
    function: Callable[..., Any],
    a: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:
    return _quantile(function, a, 0.5, axis, keepdims=keepdims)


_function: Callable[..., Any]
for _function in (np.median, np.nanmedian):
    composed(_function)(partial(_median, _function))
for _function in (np.quantile, np.nanquantile, np.percentile, np.nanpercentile):
    composed(_function)(partial(_quantile, _function))


# -- differences, gaps and areas -----------------------------------------------------------------

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
            raise TypeError(f"{x.dtype} cannot become {line.dtype}, the dtype of ary")
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
# The correction depends on jumps only, so it is constant between jumps.
unwrap = numpy_function(np.unwrap, "p", options={"discont": None, "axis": -1, "period": 2 * np.pi},
                        p=lambda g: g)
# fmt: on
