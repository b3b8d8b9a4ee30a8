"""GELU on CuPy arrays: the kernels against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn
from telegrad.autograd import tensor
from tests.gpu.comparison import host
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, EDGES, agree, few, laid, layouts, small_grid

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
    for given_there, given_here in (((there,), (exact,)), ((there, gradient), (exact, g))):
        agree(
            cupy,
            kernels.gelu_slope(*given_there, approximate=form),
            _twin(kernels.gelu_slope, form, x.dtype, *given_here),
            times=4,
        )
    agree(cupy, there, x)


def _twin(function: Any, form: str, dtype: Any, *values: Any) -> Any:
    return function(*values, approximate=form).astype(dtype)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [4096, 10001])
def test_more_items_than_threads(cupy: Any, size: int, dtype: Any) -> None:
    x = np.random.default_rng(0).normal(size=size).astype(dtype)
    agree(cupy, kernels.gelu(cupy.asarray(x)), kernels.gelu(x))


@pytest.mark.parametrize("form", FORMS)
def test_one_launch_each_way(stand_in_cupy: Any, form: str) -> None:
    cupy = stand_in_cupy
    gradient = cupy.ones((3, 5), dtype=np.float32)
    x = tensor(cupy.ones((3, 5), dtype=np.float32), requires_grad=True)
    with launches() as forward:
        y = nn.functional.gelu(x, form)
    with launches() as backward:
        y.backward(gradient)
    assert forward == ["gelu_forward"]
    assert backward == ["gelu_backward"]


def test_far_and_special_numbers(cupy: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30, -12.0], np.float32)
    with np.errstate(invalid="ignore"):
        for form in FORMS:
            found = host(kernels.gelu(cupy.asarray(x), approximate=form))
            np.testing.assert_array_equal(np.isnan(found[2]), True)
            np.testing.assert_allclose(found[3:], [0, 0, 1e30, 0, 0], atol=1e-6)


def test_what_does_not_fit(cupy: Any) -> None:
    x = cupy.ones(3, dtype=np.float32)
    with pytest.raises(ValueError, match=r"gradient has shape \(2,\), \(3,\) needed"):
        kernels.gelu_slope(x, x[:2])
    with pytest.raises(ValueError, match="gradient of gelu_backward is in host memory"):
        kernels.gelu_slope(x, np.ones(3, np.float32))
