"""Convolution and pooling of CuPy arrays by `windows.cu`, against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn, tensor
from telegrad.kernels import convolution
from telegrad.kernels.windows import Windows
from tests.gpu.comparison import host, normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, agree, few, laid, layouts, small_grid

__all__ = ["small_grid"]

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
ENDS = st.tuples(st.integers(0, 2), st.integers(0, 2))
WINDOWS = st.builds(Windows, PAIRS, PAIRS, st.tuples(ENDS, ENDS), PAIRS)
SIDES = st.tuples(st.integers(7, 9), st.sampled_from([7, 8, 33]))


def wide(*arrays: Any) -> list[Any]:
    return [array.astype(np.float64) for array in arrays]


@few
@given(
    WINDOWS,
    SIDES,
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1, 2]),
    st.sampled_from(DTYPES),
    layouts,
)
def test_cupys_convolutions_are_numpys(
    cupy: Any, windows: Windows, sides: Any, n: int, groups: int, dtype: Any, layout: str
) -> None:
    x, weight = (
        normal(i, *shape).astype(dtype)
        for i, shape in enumerate([(n, 4, *sides), (6, 4 // groups, *windows.size)])
    )
    bias = normal(2, 6).astype(dtype)
    how: Any = {"windows": windows, "groups": groups}
    gradient = normal(3, n, 6, *windows.counts(x.shape)).astype(dtype)
    there = laid(cupy, x, layout), laid(cupy, weight, layout), laid(cupy, gradient, layout)
    terms = 4 * windows.size[0] * windows.size[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "_GPU_BYTES", 1 << 14)  # a few images at a time
        found = kernels.conv2d(there[0], there[1], cupy.asarray(bias), **how)
        agree(cupy, found, kernels.conv2d(*wide(x, weight, bias), **how).astype(dtype), times=terms)
        found = kernels.conv2d_weight(there[2], there[0], into=weight.shape, **how)
        expected = kernels.conv2d_weight(*wide(gradient, x), into=weight.shape, **how)
        agree(cupy, found, expected.astype(dtype), times=max(1, gradient.size))
        found = kernels.conv2d_input(there[2], there[1], into=x.shape, **how)
        expected = kernels.conv2d_input(*wide(gradient, weight), into=x.shape, **how)
        agree(cupy, found, expected.astype(dtype), times=6 * terms)


@few
@given(WINDOWS, SIDES, st.sampled_from([(), (0,), (2, 3)]), st.sampled_from(DTYPES), layouts)
def test_cupys_largest_items_are_numpys(
    cupy: Any, windows: Windows, sides: Any, lead: Any, dtype: Any, layout: str
) -> None:
    x = np.round(normal(0, *lead, *sides)).astype(dtype)  # many are equal
    x[..., 2, 2] = np.nan
    x[..., 0, :] = -np.inf
    with np.errstate(invalid="ignore"):  # NumPy warns of a bfloat16 that is NaN
        largest, places = kernels.max_pool2d(x, windows=windows)
    found, there = kernels.max_pool2d(laid(cupy, x, layout), windows=windows)
    agree(cupy, found, largest)
    agree(cupy, there, places)
    gradient = normal(1, *largest.shape).astype(dtype)
    how: Any = {"windows": windows, "into": x.shape}
    found = kernels.spread_places(laid(cupy, gradient, layout), there, **how)
    expected = kernels.spread_places(gradient.astype(np.float64), places, **how)
    agree(cupy, found, expected.astype(dtype), times=9)


@pytest.mark.usefixtures("small_grid")
def test_more_items_than_a_grid_has_threads(cupy: Any) -> None:
    windows = Windows((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    x, weight = normal(0, 2, 3, 20, 20), normal(1, 2, 3, 3, 3)
    found = kernels.conv2d(cupy.asarray(x), cupy.asarray(weight), windows=windows)
    agree(cupy, found, kernels.conv2d(x, weight, windows=windows), times=27)


@pytest.mark.parametrize("dtype", [np.complex128, np.int64])
def test_other_dtypes_go_place_by_place(cupy: Any, dtype: Any) -> None:
    windows = Windows((2, 2), (1, 1), ((1, 0), (0, 0)), (1, 1))
    x, weight = (
        (10 * normal(0, 2, 3, 5, 5)).astype(dtype),
        (10 * normal(1, 2, 3, 2, 2)).astype(dtype),
    )
    found = kernels.conv2d(cupy.asarray(x), cupy.asarray(weight), windows=windows)
    np.testing.assert_allclose(host(found), kernels.conv2d(x, weight, windows=windows))


def test_windows_of_more_places_than_a_byte_counts(cupy: Any) -> None:
    windows = Windows((17, 16), (1, 1), ((0, 0), (0, 0)), (1, 1))
    x = normal(0, 1, 20, 20)
    largest, places = kernels.max_pool2d(x, windows=windows)
    found, there = kernels.max_pool2d(cupy.asarray(x), windows=windows)
    assert places.dtype == np.uint16
    agree(cupy, found, largest)
    agree(cupy, there, places)


def test_launches_of_a_layer(stand_in_cupy: Any) -> None:
    cupy = stand_in_cupy
    x = tensor(cupy.ones((2, 3, 8, 8), np.float32), requires_grad=True)
    layer = nn.Conv2d(3, 4, 3, padding=1).to("cuda")
    with launches() as seen:
        y = layer(x)
    assert seen == ["gather_windows", "gemm", "cupy_add"]
    with launches() as seen:
        z = nn.functional.max_pool2d(y, 2)
    assert seen == ["max_windows"]
    gradient = cupy.ones(z.shape, np.float32)
    with launches() as seen:
        z.backward(gradient)
    assert sorted(seen) == sorted(
        ["spread_windows", "gather_windows", "gemm", "sum", "gemm", "scatter_windows", "sum"]
    )
