"""Activations: short and far numbers by other formulas, slopes at kinks, gates, refusals.

The golden tests have values and slopes to second order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import nn
from telegrad.autograd import Tensor, grad, gradcheck, gradgradcheck

F = nn.functional

# A function, and its formula in Python's numbers.
CASES: dict[str, tuple[Callable[..., Any], Callable[[float], float]]] = {
    "relu": (F.relu, lambda x: max(x, 0)),
    "relu6": (F.relu6, lambda x: min(max(x, 0), 6)),
    "leaky_relu": (F.leaky_relu, lambda x: x if x > 0 else 0.01 * x),
    "elu": (F.elu, lambda x: x if x > 0 else math.expm1(x)),
    "elu 0.5": (
        lambda x: F.elu(x, np.float64(0.5)),  # which is no reason for a result of float64
        lambda x: x if x > 0 else 0.5 * math.expm1(x),
    ),
    "selu": (
        F.selu,
        lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
    ),
    "gelu": (F.gelu, lambda x: x * math.erfc(-x / math.sqrt(2)) / 2),
    "gelu tanh": (
        lambda x: F.gelu(x, "tanh"),
        lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (F.silu, lambda x: x / (1 + math.exp(-x))),
    "mish": (F.mish, lambda x: x * math.tanh(math.log1p(math.exp(x)))),
    "sigmoid": (F.sigmoid, lambda x: 1 / (1 + math.exp(-x))),
    "logsigmoid": (F.logsigmoid, lambda x: -math.log1p(math.exp(-x))),
    "tanh": (F.tanh, math.tanh),
    "softplus": (F.softplus, lambda x: math.log1p(math.exp(x))),
    "softplus 2": (
        lambda x: F.softplus(x, 2.0, 5.0),
        lambda x: math.log1p(math.exp(2 * x)) / 2 if 2 * x <= 5 else x,
    ),
    "softsign": (F.softsign, lambda x: x / (1 + abs(x))),
    "hardtanh": (F.hardtanh, lambda x: min(max(x, -1), 1)),
    "hardtanh 2": (lambda x: F.hardtanh(x, -0.5, 2.0), lambda x: min(max(x, -0.5), 2)),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_short_and_far_numbers(name: str, dtype: Any) -> None:
    """Nothing overflows on the way (a warning is an error), and dtypes stay."""
    function, exact = CASES[name]
    x = np.array([-30000, -200, -11, -1, 0, 1, 11, 200, 30000], dtype)
    leaf = Tensor(x, requires_grad=True)
    with np.errstate(under="ignore"):
        y = function(leaf)
        y.backward(np.ones(9, dtype))
    assert y.dtype == dtype
    assert leaf.grad is not None
    assert leaf.grad.dtype == dtype
    assert np.isfinite(leaf.grad.data).all()
    near = slice(2, 7)
    expected = [exact(float(item)) for item in x[near]]
    error = 2e-3 if dtype == np.float16 else 1e-6
    np.testing.assert_allclose(y.data[near], expected, rtol=error, atol=error)


def test_slopes_at_kinks() -> None:
    for function, at, slope in [
        (F.relu, 0.0, 0.0),
        (F.relu6, 0.0, 0.0),
        (F.relu6, 6.0, 0.0),
        (F.leaky_relu, 0.0, 0.01),
        (F.hardtanh, -1.0, 0.0),
        (F.hardtanh, 1.0, 0.0),
        (F.elu, 0.0, 1.0),
        (F.softplus, 0.0, 0.5),
    ]:
        x = Tensor(np.array(at), requires_grad=True)
        function(x).backward()
        assert x.grad is not None
        assert x.grad.item() == slope, function


GATES: dict[str, Callable[..., Any]] = {
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, "tanh"),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("shape", "dim"), [((4,), -1), ((3, 2), 1), ((2, 4, 3), 1), ((2, 3), 0)])
def test_gates(gate: str, shape: Any, dim: int) -> None:
    x = Tensor(2 * np.random.default_rng(0).normal(size=shape), requires_grad=True)
    first, second = np.split(x.data, 2, axis=dim)
    for found in (F.glu(x, dim, gate), nn.GLU(dim, gate)(x)):
        np.testing.assert_allclose(found.data, first * GATES[gate](second).data, rtol=1e-12)
    assert gradcheck(lambda x: F.glu(x, dim, gate), [x])
    assert gradgradcheck(lambda x: F.glu(x, dim, gate), [x])


def test_gates_refuse_what_has_no_halves() -> None:
    x = np.ones((2, 3))
    refused: dict[str, Callable[[], object]] = {
        "not axis -1 of shape": lambda: F.glu(x),
        "not axis 2 of shape": lambda: F.glu(x, 2),
        "gate is one of gelu, gelu_tanh, silu, sigmoid; not 'relu'": lambda: F.glu(x, 0, "relu"),
    }
    for words, call in refused.items():
        with pytest.raises(ValueError, match=words):
            call()
    np.testing.assert_array_equal(F.glu(np.array([2.0, 1.0, 1e4, -1e4])).data, [2, 0])
    assert repr(nn.GLU(0, "silu")) == "GLU(0, 'silu')"


def test_gelu_is_right_to_the_last_digits_also_in_the_tail() -> None:
    x = np.linspace(-12, 12, 48001)
    exact = np.array([item * math.erfc(-item / math.sqrt(2)) / 2 for item in x.tolist()])
    found = F.gelu(x).data
    assert np.abs(found - exact).max() < 1e-14
    left = x < -1
    assert np.abs(found[left] / exact[left] - 1).max() < 1e-12
    short = F.gelu(x.astype(np.float32)).data
    assert np.abs(short - exact).max() < 4e-6  # that of x itself: 12 has steps of 1e-6
    assert np.abs(short - exact)[np.abs(x) < 1].max() < 4e-7


LIMITS: dict[str, tuple[float, float, float, float]] = {  # at -inf and inf: values, slopes
    "relu": (0, math.inf, 0, 1),
    "relu6": (0, 6, 0, 0),
    "leaky_relu": (-math.inf, math.inf, 0.01, 1),
    "elu": (-1, math.inf, 0, 1),
    "elu 0.5": (-0.5, math.inf, 0, 1),
    "selu": (-1.0507009873554805 * 1.6732632423543772, math.inf, 0, 1.0507009873554805),
    "gelu": (0, math.inf, 0, 1),
    "gelu tanh": (0, math.inf, 0, 1),
    "silu": (0, math.inf, 0, 1),
    "mish": (0, math.inf, 0, 1),
    "sigmoid": (0, 1, 0, 0),
    "logsigmoid": (-math.inf, 0, 1, 0),
    "tanh": (-1, 1, 0, 0),
    "softplus": (0, math.inf, 0, 1),
    "softplus 2": (0, math.inf, 0, 1),
    "softsign": (-1, 1, 0, 0),
    "hardtanh": (-1, 1, 0, 0),
    "hardtanh 2": (-0.5, 2, 0, 0),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_infinities_have_the_limits_as_values_and_slopes(name: str, dtype: Any) -> None:
    """Nothing is computed as an infinity times 0; beyond the range of squares, too."""
    low, high, slope_low, slope_high = LIMITS[name]
    far = {np.float16: 3e4, np.float32: 1e30, np.float64: 1e200}[dtype]
    for size in (math.inf, far):
        x = Tensor(np.array([-size, size], dtype), requires_grad=True)
        y = CASES[name][0](x)
        values = [
            v if abs(v) < math.inf else size * slope * math.copysign(1, v)
            for v, slope in ((low, slope_low), (high, slope_high))
        ]
        np.testing.assert_allclose(y.data, np.array(values, dtype), rtol=2e-3, atol=1e-20)
        (slope,) = grad([y], [x], [np.ones(2, dtype)], create_graph=True)
        np.testing.assert_allclose(slope.data, [slope_low, slope_high], rtol=2e-3, atol=1e-20)
        if slope.requires_grad:
            (bend,) = grad([slope], [x], [np.ones(2, dtype)], allow_unused=True)
            assert bend is None or not np.isnan(bend.data).any()


def _slope_of_gelu_tanh(x: float) -> float:
    twice, rise = (1 + 0.044715 * x * x) * x, 1 + 3 * 0.044715 * x * x
    small = math.exp(2 * math.sqrt(2 / math.pi) * twice)  # x < 0
    return small / (1 + small) + x * small / (1 + small) ** 2 * 2 * math.sqrt(2 / math.pi) * rise


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slopes_do_not_cancel_far_to_the_left(dtype: Any) -> None:
    x = -np.array([1e-3, 1.5, 3, 5, 8, 10, 12], dtype)
    exact: dict[str, Callable[[float], float]] = {
        "elu": math.exp,
        "elu 0.5": lambda x: 0.5 * math.exp(x),
        "selu": lambda x: 1.0507009873554805 * 1.6732632423543772 * math.exp(x),
        "gelu": lambda x: (
            math.erfc(-x / math.sqrt(2)) / 2 + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        ),
        "gelu tanh": _slope_of_gelu_tanh,
    }
    for name, slope in exact.items():
        t = Tensor(x[:4] if name == "gelu tanh" else x, requires_grad=True)
        CASES[name][0](t).backward(np.ones_like(t.data))
        found: Any = t.grad
        expected = [slope(float(item)) for item in t.data]
        tolerance = 1e-5 if dtype is np.float32 else 1e-11
        np.testing.assert_allclose(found.data, expected, rtol=tolerance, err_msg=name)


def test_elu_with_a_negative_alpha() -> None:
    x = Tensor(np.array([-2.0, -0.5, 0.5]), requires_grad=True)
    np.testing.assert_allclose(
        F.elu(x, -1.5).data, [-1.5 * math.expm1(-2), -1.5 * math.expm1(-0.5), 0.5]
    )
    assert gradcheck(lambda x: F.elu(x, -1.5), [x])
    assert gradgradcheck(lambda x: F.elu(x, -1.5), [x])


def test_gelu_of_more_than_a_piece() -> None:
    x = np.random.default_rng(0).normal(size=(3, 10001))
    whole = F.gelu(x).data
    for row, expected in zip(x, whole, strict=True):
        np.testing.assert_array_equal(F.gelu(row).data, expected)
    assert x.std() > 0.9  # not written into


def test_what_they_refuse() -> None:
    with pytest.raises(ValueError, match="approximate is 'none' or 'tanh', not 'erf'"):
        F.gelu(np.ones(2), "erf")
    with pytest.raises(ValueError, match="min_val must be less than max_val"):
        F.hardtanh(np.ones(2), 1.0, 1.0)
