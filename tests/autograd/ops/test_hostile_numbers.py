"""Rules beside masked items, at infinities, and where squares overflow or vanish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import grad, tensor

MASK = np.array([[True, False, True], [True, True, False]])
NUMBERS = np.array([[1.0, 2.0, 3.0], [-4.0, 5.0, 0.5]])
MASKED: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "var": np.var,
    "std": np.std,
    "max": lambda x, **how: np.max(x, initial=-9.0, **how),
    "min": lambda x, **how: np.min(x, initial=9.0, **how),
    "nansum": np.nansum,
    "nanprod": np.nanprod,
    "nanmean": np.nanmean,
    "nanvar": np.nanvar,
    "nanstd": np.nanstd,
    "nanmax": lambda x, **how: np.nanmax(x, initial=-9.0, **how),
    "nanmin": lambda x, **how: np.nanmin(x, initial=9.0, **how),
    "where": lambda x, where, axis: np.sum(np.where(where, x, 0.0) ** 2, axis=axis),
    "select": lambda x, where, axis: np.sum(np.select([where], [x], 0.0) ** 2, axis=axis),
    "nanmedian": lambda x, where, axis: np.nanmedian(np.where(where, x, np.nan), axis=axis),
}


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("name", MASKED)
def test_a_masked_item_may_be_anything(name: str, axis: int | None) -> None:
    """Values, gradients, and gradients of gradients."""

    def of(item: float) -> list[Any]:
        x = tensor(np.where(MASK, NUMBERS, item), requires_grad=True)
        y = MASKED[name](x, where=MASK, axis=axis)
        loss = (y * y).sum()
        (slope,) = grad([loss], [x], create_graph=True)
        (bend,) = grad([(slope * slope).sum()], [x])
        return [y.data, slope.data, bend.data]

    expected = of(7.0)
    for item in (np.inf, -np.inf, np.nan, 1e308, 0.0, 1e-310):
        with np.errstate(over="ignore"):  # by NumPy, which squares masked items, too
            several = of(item)
        for found, exact in zip(several, expected, strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-12, err_msg=f"{name} of {item}")


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_products_with_an_infinite_factor_or_product(shape: Any) -> None:
    cases: list[tuple[list[float], list[float]]] = [
        ([np.inf, 2.0, 3.0], [6.0, np.inf, np.inf]),
        ([2.0, 3.0, np.inf], [np.inf, np.inf, 6.0]),
        ([1e200, 1e-300, 1e300], [1.0, np.inf, 1e-100]),
    ]
    for factors, expected in cases:
        x = tensor(np.array(factors).reshape(shape), requires_grad=True)
        with np.errstate(over="ignore"):
            np.prod(x, axis=-1).sum().backward()
        found: Any = x.grad
        np.testing.assert_allclose(found.data.ravel(), expected)
    x = tensor(np.array([np.inf, 2.0, 3.0]), requires_grad=True)
    np.cumprod(x).sum().backward()
    found = x.grad
    assert found.data.tolist() == [9.0, np.inf, np.inf]


def derivatives(function: Callable[[Any], Any], at: float, dtype: Any = np.float64) -> list[float]:
    x = tensor(np.array(at, dtype), requires_grad=True)
    (slope,) = grad([function(x)], [x], create_graph=True)
    (bend,) = grad([slope], [x])
    return [slope.item(), bend.item()]


@pytest.mark.parametrize("x", [3.25, 1000.25, -4096.5, 65537.75])
def test_derivatives_of_sinc_far_out(x: float) -> None:
    sine, cosine, turn = np.sin(np.pi * (x % 2)), np.cos(np.pi * (x % 2)), np.pi * x
    slope = np.pi * (cosine / turn - sine / turn**2)
    bend = np.pi**2 * (2 * sine / turn**3 - 2 * cosine / turn**2 - sine / turn)
    found = derivatives(np.sinc, x)
    np.testing.assert_allclose(found, [slope, bend], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("dtype", "far"), [(np.float32, 1e30), (np.float64, 1e200)])
def test_derivatives_where_squares_overflow(dtype: Any, far: float) -> None:
    """The branch of `sinc` for small numbers made infinity times 0 of large ones."""
    with np.errstate(invalid="raise", over="raise"):
        for x in (far, -far):
            assert np.abs(derivatives(np.sinc, x, dtype)).max() <= 10 / far
            slope, bend = derivatives(np.arcsinh, x, dtype)
            assert slope == pytest.approx(1 / far, rel=1e-6)
            assert bend == pytest.approx(0.0, abs=1 / far)


def test_i0_has_a_slope_beside_0() -> None:
    for x in (1e-20, -1e-9, 1e-3):
        np.testing.assert_allclose(derivatives(np.i0, x), [x / 2 + x**3 / 16, 0.5 + 3 * x * x / 16])
