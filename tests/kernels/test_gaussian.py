"""GELU on CuPy arrays: the kernels against their twins of NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn
from telegrad.autograd import tensor
from tests.gpu.comparison import host
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, EDGES, agree, compiles, few, laid, layouts, small_grid

__all__ = ["small_grid"]

FORMS = ["none", "tanh"]
SHAPES = st.one_of(
    st.sampled_from([(n,) for n in EDGES]), st.lists(st.integers(0, 9), min_size=1).map(tuple)
)


@few
@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from(FORMS), layouts, layouts)
def test_cupys_numbers_are_numpys(
    cupy: Any, shape: Any, dtype: Any, form: str, layout: str, other: str
) -> None:
    generator = np.random.default_rng(len(shape))
    x, g = ((4 * generator.normal(size=shape)).astype(dtype) for _ in range(2))
    there, gradient = laid(cupy, x, layout), laid(cupy, g, other)
    exact = x.astype(np.float64)  # in float32 the twin's tanh form cancels far from 0
    agree(cupy, kernels.gelu(there, approximate=form), _twin(kernels.gelu, form, x.dtype, exact))
    agree(
        cupy,
        kernels.gelu_slope(there, gradient, approximate=form),
        _twin(kernels.gelu_slope, form, x.dtype, exact, g),
        times=4,
    )
    agree(cupy, there, x)


@compiles
@few
@given(
    st.lists(st.integers(0, 5), max_size=2),
    st.sampled_from([1, 2, 4, 16, 33, 1025]),
    st.lists(st.integers(1, 9), max_size=1),
    st.sampled_from(DTYPES),
    st.sampled_from(["gelu", "gelu_tanh", "silu", "sigmoid"]),
    layouts,
    layouts,
)
def test_gates_find_the_numbers_of_numpy(
    cupy: Any, before: Any, half: int, after: Any, dtype: Any, gate: str, layout: str, other: str
) -> None:
    generator = np.random.default_rng(half)
    x = (2 * generator.normal(size=(*before, 2 * half, *after))).astype(dtype)
    g = generator.normal(size=(*before, half, *after)).astype(dtype)
    how: Any = {"dim": len(before), "gate": gate}
    there = laid(cupy, x, layout)
    agree(cupy, kernels.gated(there, **how), kernels.gated(x, **how), times=10)
    found = kernels.gated_gradient(laid(cupy, g, other), there, **how)
    agree(cupy, found, kernels.gated_gradient(g, x, **how), times=10)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("half", [1024, 1023])
def test_more_halves_than_a_grid(cupy: Any, half: int) -> None:
    x = np.random.default_rng(0).normal(size=(7, 2 * half)).astype(np.float32)
    g = x[:, :half]
    agree(cupy, kernels.gated(cupy.asarray(x)), kernels.gated(x))
    found = kernels.gated_gradient(cupy.asarray(g), cupy.asarray(x))
    agree(cupy, found, kernels.gated_gradient(g, x), times=10)


def _twin(function: Any, form: str, dtype: Any, *values: Any) -> Any:
    return function(*values, approximate=form).astype(dtype)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [4096, 10001])
def test_more_items_than_threads(cupy: Any, size: int, dtype: Any) -> None:
    x = np.random.default_rng(0).normal(size=size).astype(dtype)
    agree(cupy, kernels.gelu(cupy.asarray(x)), kernels.gelu(x))


@pytest.mark.parametrize(
    ("kernel", "function", "option"),
    [
        *(("gelu", nn.functional.gelu, {"approximate": form}) for form in FORMS),
        *(("gated", nn.functional.glu, {"gate": gate}) for gate in ("gelu", "silu", "sigmoid")),
    ],
)
def test_one_launch_each_way(stand_in_cupy: Any, kernel: str, function: Any, option: Any) -> None:
    x = tensor(stand_in_cupy.ones((3, 10), dtype=np.float32), requires_grad=True)
    with launches() as forward:
        y = function(x, **option)
    gradient = stand_in_cupy.ones(y.shape, dtype=np.float32)
    with launches() as backward:
        y.backward(gradient)
    assert forward == [f"{kernel}_forward"]
    assert backward == [f"{kernel}_backward"]


def test_far_and_special_numbers(cupy: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30, -12.0], np.float32)
    with np.errstate(invalid="ignore"):
        for form in FORMS:
            found = host(kernels.gelu(cupy.asarray(x), approximate=form))
            np.testing.assert_array_equal(np.isnan(found[2]), True)
            np.testing.assert_allclose(found[3:], [0, 0, 1e30, 0, 0], atol=1e-6)
            assert found[:2].tolist() == [np.inf, 0]
            slopes = host(
                kernels.gelu_slope(
                    cupy.asarray(x), cupy.ones(8, dtype=np.float32), approximate=form
                )
            )
            assert np.isnan(slopes[2])
            np.testing.assert_allclose(slopes[[0, 1, 5, 6, 7]], [1, 0, 1, 0, 0], atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
def test_the_left_tail_has_all_its_digits(xp: Any, form: str, dtype: Any) -> None:
    x = -np.array([1.5, 3, 5, 8, 10], dtype)[: 3 if form == "tanh" else 5]
    wide = x.astype(np.longdouble)
    if form == "tanh":
        root = np.sqrt(np.longdouble(2) / np.longdouble(np.pi))
        share = 1 / (1 + np.exp(-2 * root * wide * (1 + np.longdouble("0.044715") * wide**2)))
        rise = 2 * root * (1 + 3 * np.longdouble("0.044715") * wide**2)
        exact = share + wide * share * (1 - share) * rise
    else:
        below = [math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()]
        exact = below + wide * np.exp(-(wide**2) / 2) / np.sqrt(2 * np.longdouble(np.pi))
    found = host(kernels.gelu_slope(xp.asarray(x), xp.ones_like(xp.asarray(x)), approximate=form))
    np.testing.assert_allclose(
        found, exact.astype(dtype), rtol=1e-5 if dtype is np.float32 else 1e-11
    )


@pytest.mark.parametrize("gate", kernels.GATES)
def test_gates_at_infinities(xp: Any, gate: str) -> None:
    x = xp.asarray(np.array([2.0, 3.0, 5.0, np.inf, -np.inf, 1e30], np.float32))
    found = host(kernels.gated(x, gate=gate))
    high = [2.0, 0.0, 5.0] if gate == "sigmoid" else [np.inf, 0.0, 5e30]
    np.testing.assert_allclose(found, np.array(high, np.float32), atol=1e-30)
    slopes = host(kernels.gated_gradient(xp.ones(3, dtype=np.float32), x, gate=gate))
    assert not np.isnan(slopes).any()
    np.testing.assert_allclose(slopes[3:], [0, 0, 0] if gate == "sigmoid" else [2, 0, 5], atol=1e-6)


def test_what_does_not_fit(cupy: Any) -> None:
    x = cupy.ones(3, dtype=np.float32)
    with pytest.raises(ValueError, match=r"gradient has shape \(2,\), \(3,\) needed"):
        kernels.gelu_slope(x, x[:2])
    with pytest.raises(ValueError, match=r"gradient has shape \(3,\), \(1,\) needed"):
        kernels.gated_gradient(x, x[:2])
    with pytest.raises(ValueError, match="gradient of gelu_backward is in host memory"):
        kernels.gelu_slope(x, np.ones(3, np.float32))
