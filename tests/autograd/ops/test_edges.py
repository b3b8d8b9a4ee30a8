"""Gradients at zero, at infinity, and where a product, a square or a difference is lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad.autograd import Tensor, gradcheck, gradgradcheck
from telegrad.errors import AutogradError

INF = math.inf
special = tg.scipy.special
lenient: Any = np  # takes more than its types say

# What is called, its arguments, and the gradient of the sum with respect to each.
# fmt: off
EDGES: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "prod: a zero, and what it starts from": (lambda x: np.prod(x, initial=3.0), [[0.0, 2.0]], [[6.0, 0.0]]),
    "prod: two zeros":                (np.prod, [[0.0, 0.0, 2.0]], [[0.0, 0.0, 0.0]]),
    "prod: vanishes":                 (np.prod, [[1e-300, 1e-100]], [[1e-100, 1e-300]]),
    "cumprod: vanishes":              (lambda x: np.cumprod(x)[-1], [[1e-300, 1e-100]], [[1e-100, 1e-300]]),
    "hypot: no length":               (np.hypot, [0.0, 0.0], [0.0, 0.0]),
    "arctan2: no length":             (np.arctan2, [0.0, 0.0], [0.0, 0.0]),
    "arctan2: squares vanish":        (np.arctan2, [1e-200, 0.0], [0.0, -1e200]),
    "arctan2: squares overflow":      (np.arctan2, [0.0, 1e200], [1e-200, 0.0]),
    "logaddexp: of nothing":          (np.logaddexp, [[-INF, -INF, 1.0], [-INF, 2.0, -INF]], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]),
    "logaddexp2: of nothing":         (np.logaddexp2, [[-INF, -INF, 1.0], [-INF, 2.0, -INF]], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]),
    "logaddexp: infinity":            (np.logaddexp, [[INF, 0.0, INF, 9e300], [0.0, INF, -INF, 9e300]], [[1.0, 0.0, 1.0, 0.5], [0.0, 1.0, 0.0, 0.5]]),
    "logaddexp2: infinity":           (np.logaddexp2, [[INF, 0.0, INF, 9e300], [0.0, INF, -INF, 9e300]], [[1.0, 0.0, 1.0, 0.5], [0.0, 1.0, 0.0, 0.5]]),
    "logsumexp: of nothing":          (special.logsumexp, [[-INF, -INF]], [[0.0, 0.0]]),
    "norm: of a negative order, 0":   (lambda x: np.linalg.norm(x + 0.0, -1), [[0.0, 2.0]], [[0.0, 0.0]]),
    "power: to the 0th":              (lambda x: x**0, [[INF, 0.0, -2.0]], [[0.0, 0.0, 0.0]]),
    "power: the exponent of 0":       (lambda b: np.zeros(3) ** b, [[-2.0, 0.0, 2.0]], [[-INF, 0.0, 0.0]]),
    "power: the exponent of -0":      (lambda b: np.float64(-0.0) ** b, [-3.0], [INF]),
    "power: infinity to the 0th":     (lambda x, b: x**b, [[INF, -INF, math.nan, 0.0], [0.0] * 4], [[0.0] * 4, [INF, 0.0, 0.0, 0.0]]),
    "power: negative numbers":        (lambda x, b: x**b, [[-2.0, -INF], [3.0, 3.0]], [[12.0, INF], [0.0, 0.0]]),
    "vander: of infinity":            (lambda x: np.vander(x, 2)[:, 0], [[INF, 2.0]], [[1.0, 1.0]]),
    "interp: two last knots":         (lambda x, fp: np.interp(x, [0.0, 1.0, 1.0], fp), [[0.5, 1.0], [0.0, 1.0, 2.0]], [[1.0, 0.0], [0.5, 0.5, 1.0]]),
    "rel_entr: nothing of nothing":   (lambda y: special.rel_entr(np.zeros(2), y), [[0.0, 1.0]], [[0.0, 0.0]]),
    "kl_div: nothing of nothing":     (lambda y: special.kl_div(np.zeros(2), y), [[0.0, 1.0]], [[1.0, 1.0]]),
}
# fmt: on


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    function, arguments, expected = EDGES[name]
    leaves = [Tensor(np.array(x), requires_grad=True) for x in arguments]
    with np.errstate(divide="ignore", under="ignore"):
        function(*leaves).sum().backward()
    for leaf, wanted in zip(leaves, expected, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(leaf.grad.data, wanted, rtol=1e-13, atol=0)


def test_power_to_the_0th_has_a_second_derivative() -> None:
    """The slope of the base is 0 there, and the slope of that along the exponent is 1 / base."""
    base, exponent = (
        Tensor(np.array(x), requires_grad=True) for x in ([2.0, -4.0, INF], [0.0] * 3)
    )
    (slope,) = tg.grad((base**exponent).sum(), base, create_graph=True)
    (mixed,) = tg.grad(slope.sum(), exponent)
    np.testing.assert_array_equal(mixed.data[:2], [0.5, -0.25])
    assert np.isfinite(mixed.data[2])
    finite = Tensor(np.array([0.5, 3.0]), requires_grad=True)
    assert gradgradcheck(lambda a, b: a**b, [finite, Tensor(np.zeros(2), requires_grad=True)])


def test_an_infinity_has_the_whole_share() -> None:
    x = Tensor(np.array([INF, 1.0]), requires_grad=True)
    special.logsumexp(x).backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.data, [1.0, 0.0])


@pytest.mark.parametrize("function", [np.logaddexp, np.logaddexp2])
def test_two_infinities_have_half_each(function: Any) -> None:
    """The slopes were NaN."""
    x, other = (Tensor(np.array([INF, second, -INF]), requires_grad=True) for second in (INF, 3.0))
    y = function(x, other)  # whose sum would be NaN
    slopes = tg.grad(y, [x, other], Tensor(np.ones(3)), create_graph=True)
    np.testing.assert_array_equal(
        [each.data for each in slopes], [[0.5, 1.0, 0.0], [0.5, 0.0, 0.0]]
    )
    bends = tg.grad((slopes[0] * slopes[1] + slopes[0]).sum(), [x, other])
    np.testing.assert_array_equal([each.data for each in bends], np.zeros((2, 3)))


@pytest.mark.parametrize("function", [np.mean, np.var, np.std, np.sum, np.prod])
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_what_does_not_count_gets_nothing(function: Any) -> None:
    """Of a row without items the variance is NaN; a loss that leaves it out has a gradient."""
    x = Tensor(np.array([[1.0, 3.0], [5.0, 7.0]]), requires_grad=True)
    rows = function(x, axis=1, where=np.array([[True, True], [False, False]]))
    np.where([True, False], rows, 0.0).sum().backward()
    assert x.grad is not None
    assert x.grad.data[0].all()
    assert not x.grad.data[1].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_ndtr_far_from_0(dtype: Any) -> None:
    """Its slope is almost -x on the left and vanishes on the right; so does the slope of that."""
    x = Tensor(np.array([-1e3, -30.0, 0.0, 30.0], dtype), requires_grad=True)
    (slopes,) = tg.grad(special.log_ndtr(x).sum(), x, create_graph=True)
    at_0 = math.sqrt(2 / math.pi)
    expected = [1000.000999998, 30.0332596674, at_0, 0.0]
    np.testing.assert_allclose(slopes.data, expected, rtol=1e-6, atol=1e-190)
    (bends,) = tg.grad(slopes.sum(), x)
    loose = 0.1 if dtype == np.float32 else 1e-3
    np.testing.assert_allclose(bends.data, [-1.0, -0.9989, -(at_0**2), 0.0], loose, 1e-190)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_short_numbers_near_the_edge(dtype: Any) -> None:
    """Of float16, 0.01 ** 4 is 0, and so is the square of 1e-4."""
    near = np.array([1e-4, 1e-3, 1e-2, 0.1, 0.3], dtype)
    functions: list[Any] = [np.sinc, lambda x: np.arctan2(x, near), lambda x: np.prod(x / 10)]
    for function in functions:
        found = []
        for exact in (dtype, np.float64):
            x = Tensor(near.astype(exact), requires_grad=True)
            function(x).sum().backward()
            assert x.grad is not None
            found.append(x.grad.data.astype(np.float64))
        tolerance = 8 * float(np.finfo(dtype).eps)
        np.testing.assert_allclose(found[0], found[1], rtol=tolerance, atol=tolerance)


def test_sinc_where_its_series_ends() -> None:
    for start in (0.0, 2.3e-3, 2.6e-3):  # the seam is at 2.46e-3
        x = Tensor(np.array([-start, start + 1e-4]), requires_grad=True)
        assert gradcheck(np.sinc, [x])
        assert gradgradcheck(np.sinc, [x])


@pytest.mark.parametrize("function", [np.convolve, np.correlate])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("length", [2, 5])
def test_modes_of_convolution_by_number(function: Any, mode: int, length: int) -> None:
    v = np.array([1.0, -2.0, 0.5])
    x = Tensor(np.arange(1.0, length + 1), requires_grad=True)
    np.testing.assert_allclose(function(x, v, mode).data, function(x.data, v, mode))
    assert gradcheck(lambda x: function(x, v, mode), [x])


def test_convolution_with_a_number() -> None:
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    assert gradcheck(lambda x: lenient.convolve(x, 2.0), [x])
    assert gradcheck(lambda x: lenient.convolve(2.0, x), [x])


def test_axes_of_tensordot_in_an_array() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 2, 2)
    x, y = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
    for axes in (np.array([[1], [0]]), np.array([[0, 1], [1, 0]])):
        np.testing.assert_allclose(
            lenient.tensordot(x, y, axes).data, lenient.tensordot(a, b, axes)
        )
        assert gradcheck(lambda x, y, axes=axes: lenient.tensordot(x, y, axes), [x, y])


def test_what_is_asked_for_is_not_passed_over() -> None:
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    with pytest.raises(AutogradError, match="pad has no gradient with respect to end_values"):
        np.pad(x, 1, "linear_ramp", end_values=x[0])
    with pytest.raises(ValueError, match="mode is 'raise', 'wrap' or 'clip', not 'around'"):
        lenient.take(x, [0], mode="around")
    with pytest.raises(ValueError, match="mode is 'raise', 'wrap' or 'clip', not 'around'"):
        lenient.choose([0, 0], [x, x], mode="around")
    with pytest.raises(ValueError, match="not some of both"):
        lenient.clip(x, 0, 1, min=2)
    bounded = np.clip(np.array([1.0, 2.0]), Tensor(np.array(1.5)), None)
    assert isinstance(bounded, Tensor)
    assert bounded.tolist() == [1.5, 2.0]
