"""How the arguments of reductions, of cumulative functions, of orders and of series are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden.builder import Builder, Value
from golden.domains import (
    GAP,
    Domain,
    Drawing,
    anything,
    axis_of,
    bounded,
    distinct,
    each,
    fraction,
    long_axis,
    real,
    real_nonzero,
    vector,
)

__all__ = ["ALONG_AXES"]


def reduced(domain: Domain, *, several: bool = True, ddof: bool = False) -> Drawing:
    def draw(b: Builder, name: str) -> None:
        x = domain(b, b.last)
        ndim = b.of(x).ndim
        choices: list[dict[str, Any]] = [{}]
        if ndim:
            axis = axis_of(b, x)
            choices += [{"axis": axis}, {"axis": axis, "keepdims": True}] * 2
        if ndim > 1 and several:
            choices += [{"axis": (0, -1)}, {"axis": (1, 0), "keepdims": True}]
        options = b.one_of(*choices)
        if ddof:
            axis = options.get("axis")
            axes = range(ndim) if axis is None else np.atleast_1d(axis)
            count = int(np.prod([b.of(x).shape[k] for k in axes]))
            options = {**options, **b.one_of({}, {"ddof": 1})}
            b.need(count > options.get("ddof", 0) + 1)
        b.emit(name, x, **options)

    return draw


def spread(b: Builder, x: Value) -> Value:
    """Neither a single number nor equal ones."""
    x = distinct(b, x)
    b.need(b.of(x).size > 1)
    return x


def mean_of(b: Builder, name: str) -> None:
    x = real(b, b.last)
    axis = axis_of(b, x)
    weights = b.constant(b.of(x).shape[axis], low=0.25)
    b.emit(name, x, axis, b.emit("add", weights, 0.0) if b.rng.random() < 0.3 else weights)


def quantiles(domain: Domain, scale: float) -> Drawing:
    def draw(b: Builder, name: str) -> None:
        x = domain(b, b.last)
        q = b.one_of(0.3125 * scale, np.array([0.125, 0.6875]) * scale)
        b.emit(name, x, q, **b.one_of({}, {"axis": axis_of(b, x)}))

    return draw


def with_gaps(domain: Domain) -> Domain:
    """Some NaN among the numbers, at most one a row."""

    def holed(b: Builder, x: Value) -> Value:
        x = domain(b, x)
        b.need(b.of(x).ndim > 0 and b.of(x).shape[-1] > 2 and min(b.of(x).shape) > 1)
        mask = np.zeros(b.of(x).shape, bool)
        mask[..., 1] = True
        mask[(0,) * (mask.ndim - 1)] &= mask.ndim == 1
        return b.emit("where", mask, float("nan"), x)

    return holed


def replaced_gaps(b: Builder, name: str) -> None:
    b.emit(name, with_gaps(real)(b, b.last))


def scanned(domain: Domain, *, flat: bool = True) -> Drawing:
    def draw(b: Builder, name: str) -> None:
        x = domain(b, b.last)
        choices = [{"axis": axis_of(b, x)}]
        if flat and (b.of(x).ndim == 1 or name not in ("cumulative_sum", "cumulative_prod")):
            choices.append({})
        b.emit(name, x, **b.one_of(*choices))

    return draw


def differences(b: Builder, name: str) -> None:
    x = b.last
    b.emit(name, x, b.one_of(1, 2), long_axis(b, x, 3))


def slope(b: Builder, name: str) -> None:
    x = real(b, b.last)
    axis = long_axis(b, x, 3)
    places = np.cumsum(b.constant(b.of(x).shape[axis], low=0.5))
    b.emit(name, x, b.one_of(0.5, places), axis=axis, edge_order=b.one_of(1, 2))


def area(b: Builder, name: str) -> None:
    x = b.last
    axis = long_axis(b, x, 2)
    places = np.cumsum(b.constant(b.of(x).shape[axis], low=0.5))
    b.emit(name, x, **b.one_of({"x": places}, {"dx": 0.5}), axis=axis)


def ordered(b: Builder, name: str) -> None:
    x = distinct(b, b.last)
    axis = axis_of(b, x)
    if name == "argsort":
        b.emit("take_along_axis", x, b.emit("argsort", x, axis), axis)
    else:
        b.emit(name, x, b.one_of(axis, None))


def interpolated(b: Builder, name: str) -> None:
    places = np.array([-3.0, -1.25, 0.125, 1.5, 2.75])
    if b.rng.random() < 0.5:
        x = distinct(b, b.last)
        b.need(float(np.abs(b.of(x).ravel()[:, None] - places).min()) > GAP)
        b.emit(name, x, places, b.constant(5))
    else:
        y = vector(b, b.last)
        b.emit(name, b.constant(3), np.arange(b.of(y).shape[0]) - 2.0, y)


def sliding(b: Builder, name: str) -> None:
    x = vector(b, b.last, 3)
    kernel: Any = b.constant(3) if b.rng.random() < 0.5 else b.emit("sin", x)
    b.emit(
        name,
        x,
        kernel,
        b.one_of("full", "valid", "same") if isinstance(kernel, np.ndarray) else "full",
    )


def polynomial(b: Builder, name: str) -> None:
    x = bounded(b, real(b, b.last))
    if b.of(x).ndim == 1 and b.rng.random() < 0.5:
        b.emit(name, x, b.constant(3, low=-1.0, high=1.0))
    else:
        b.emit(name, b.constant(4), x)


def powers(b: Builder, name: str) -> None:
    b.emit(name, bounded(b, vector(b, b.last)), N=3, increasing=b.one_of(True, False))


def covariance(b: Builder, name: str) -> None:
    x = distinct(b, b.last)
    b.need(b.of(x).ndim == 2 and min(b.of(x).shape) > 1 and b.of(x).shape[1] > 2)
    b.emit(name, x)


def of_polynomials(b: Builder, name: str) -> None:
    x = vector(b, real(b, b.last))
    b.need(abs(float(b.of(x)[0])) > GAP)  # leading zeros are no part of a polynomial
    b.emit(name, x, *([] if name in ("polyder", "polyint") else [b.constant(3)]))


def counted(b: Builder, name: str) -> None:
    x = vector(b, b.last)
    b.emit(name, b.rng.integers(0, 3, b.of(x).shape), weights=x, minlength=b.one_of(0, 4))


def set_of(b: Builder, name: str) -> None:
    x = distinct(b, b.last)
    b.emit(name, x, *([np.array([-0.9, 0.3, 1.2])] if name == "union1d" else []))


def normalised(b: Builder, name: str) -> None:
    x = bounded(b, real(b, b.last))
    b.emit(name, x, axis=axis_of(b, x))


# fmt: off
ALONG_AXES: dict[str, Drawing] = {
    **each("sum mean", reduced(anything)), "prod": reduced(lambda b, x: bounded(b, real_nonzero(b, x))), **each("max min amax amin ptp", reduced(spread)),
    "median": reduced(spread, several=False), **each("var std", reduced(spread, ddof=True)), "average": mean_of,
    "quantile": quantiles(spread, 1.0), "percentile": quantiles(spread, 100.0), "nanquantile": quantiles(with_gaps(spread), 1.0), "nanpercentile": quantiles(with_gaps(spread), 100.0),
    **each("nansum nanmean", reduced(with_gaps(real))), "nanmedian": reduced(with_gaps(spread), several=False), "nancumsum": scanned(with_gaps(real)), "nan_to_num": replaced_gaps,
    "cumsum": scanned(anything), "cumulative_sum": scanned(real), **each("cumprod cumulative_prod", scanned(lambda b, x: bounded(b, real_nonzero(b, x)))),
    "diff": differences, "ediff1d": lambda b, name: b.emit(name, vector(b, b.last)), "gradient": slope, "trapezoid": area, **each("sort argsort", ordered),
    "unwrap": lambda b, name: b.emit(name, fraction(b, vector(b, b.last))), "interp": interpolated, **each("convolve correlate", sliding),
    "nancumprod": scanned(with_gaps(lambda b, x: bounded(b, real_nonzero(b, x)))), **each("nanmax nanmin nanprod nanvar nanstd", reduced(with_gaps(spread))),
    **each("polyadd polysub polymul polyder polyint", of_polynomials), "bincount": counted, **each("unique union1d", set_of),
    "special.logsumexp": reduced(lambda b, x: bounded(b, real(b, x))), **each("special.softmax special.log_softmax", normalised),
    "polyval": polynomial, "vander": powers, **each("cov corrcoef", covariance),
}
# fmt: on
