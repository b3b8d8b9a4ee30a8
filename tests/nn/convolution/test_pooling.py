"""Pooling against loops, to second order, and what `Flatten` refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import nn
from telegrad.autograd import Tensor, gradcheck, tensor
from tests.autograd.finite_differences import check_second_along_a_line
from tests.nn.reference import pooled

F = nn.functional

# Of the array, of a window, stride, padding.
CASES: list[tuple[Any, ...]] = [
    ((2, 3, 6, 4), (2, 2), (2, 2), (0, 0)),
    ((1, 2, 5, 7), (3, 2), (2, 2), (1, 1)),
    ((2, 5, 5), (3, 3), (1, 1), (1, 1)),
    ((5, 4), (2, 3), (3, 1), (0, 0)),
    ((1, 1, 2, 2), (2, 2), (1, 1), (0, 0)),
    ((0, 2, 4, 4), (2, 2), (2, 2), (0, 0)),
]


def distinct(*shape: int) -> Any:
    size = int(np.prod(shape))
    return np.random.default_rng(0).permutation(size).reshape(shape) / max(size, 1) - 0.3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_largest(case: Any) -> None:
    shape, size, stride, padding = case
    x = distinct(*shape)
    found = F.max_pool2d(x, size, stride, padding)
    np.testing.assert_array_equal(found.data, pooled(x, np.nanmax, size, stride, padding))
    leaf = Tensor(x, requires_grad=True)
    assert gradcheck(lambda x: F.max_pool2d(x, size, stride, padding), leaf)
    check_second_along_a_line(lambda x: F.max_pool2d(x, size, stride, padding) ** 2, leaf)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_mean(case: Any, counted: bool) -> None:
    shape, size, stride, padding = case
    x = distinct(*shape)

    def take(window: Any) -> float:
        return float(np.nansum(window) / (window.size if counted else np.isfinite(window).sum()))

    def call(x: Any) -> Any:
        return F.avg_pool2d(x, size, stride, padding, count_include_pad=counted)

    expected = pooled(x, take, size, stride, padding)
    np.testing.assert_allclose(call(x).data, expected, rtol=1e-12, atol=1e-14)
    assert gradcheck(call, Tensor(x, requires_grad=True))
    check_second_along_a_line(lambda x: call(x) ** 2, Tensor(x, requires_grad=True))


def test_items_that_are_equal_and_no_numbers() -> None:
    """The first of equal items gets the gradient, and a NaN is not passed over."""
    x = Tensor(np.zeros((1, 4, 4)), requires_grad=True)
    F.max_pool2d(x, 2).sum().backward()
    assert x.grad is not None
    expected = np.zeros((4, 4))
    expected[::2, ::2] = 1
    np.testing.assert_array_equal(x.grad.data[0], expected)
    for place in range(4):
        window = np.zeros(4)
        window[place] = np.nan
        assert np.isnan(F.max_pool2d(window.reshape(2, 2), 2).item())
    below = F.max_pool2d(np.full((2, 2), -3.0), 2, 1, 1)
    assert below.data.tolist() == [[-3.0] * 3] * 3  # padding does not win


@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (6, 4), (0, 2, 5, 5)], ids=str)
@pytest.mark.parametrize("size", [1, 2, (3, 2), (None, 4), (7, 9)], ids=str)
def test_parts_of_even_size(shape: Any, size: Any) -> None:
    x = distinct(*shape)
    given = size if isinstance(size, tuple) else (size, size)
    parts = [n if part is None else part for part, n in zip(given, shape[-2:], strict=True)]
    expected = np.zeros((*shape[:-2], *parts))
    for i, j in np.ndindex(*parts):
        bounds = [
            slice(k * n // part, -(-(k + 1) * n // part))
            for k, n, part in zip((i, j), shape[-2:], parts, strict=True)
        ]
        expected[..., i, j] = x[..., bounds[0], bounds[1]].mean((-2, -1))
    found = F.adaptive_avg_pool2d(x, size)
    np.testing.assert_allclose(found.data, expected, rtol=1e-12, atol=1e-14)
    if x.size:
        assert gradcheck(lambda x: F.adaptive_avg_pool2d(x, size), Tensor(x, requires_grad=True))


@pytest.mark.parametrize("function", [F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_dtypes(function: Any, dtype: Any) -> None:
    x = Tensor(distinct(1, 5, 4).astype(dtype), requires_grad=True)
    y = function(x, 3)
    y.sum().backward()
    assert y.dtype == dtype
    assert x.grad is not None
    assert x.grad.dtype == dtype


def test_flatten() -> None:
    x = np.arange(24.0).reshape(2, 3, 2, 2)
    assert nn.Flatten(-2)(x).shape == (2, 3, 4)
    assert nn.Flatten()(np.zeros((0, 3, 2))).shape == (0, 6)
    for wrong in (nn.Flatten(2, 1), nn.Flatten(4)):
        with pytest.raises(ValueError, match=r"does not fit the shape \(2, 3, 2, 2\)"):
            wrong(x)


def test_what_they_refuse() -> None:
    x = np.zeros((2, 2))
    refused: list[tuple[Any, str]] = [
        (lambda: F.max_pool2d(x, 3), "a window of 3 by 3 .* does not fit into 2 by 2"),
        (lambda: F.max_pool2d(x, 2, padding=2), "at most half a window"),
        (lambda: F.avg_pool2d(x, 2, 0), "stride is one integer or two, at least 1"),
        (lambda: nn.MaxPool2d(0), "kernel_size is one integer or two"),
        (lambda: F.max_pool2d(x[0], 1), "over the last two axes"),
        (lambda: F.adaptive_avg_pool2d(x, 0), "output_size is positive"),
        (lambda: F.adaptive_avg_pool2d(x[:0], 1), "the mean of no items"),
    ]
    for call, words in refused:
        with pytest.raises(ValueError, match=words):
            call()


def test_means_of_large_windows_of_short_floats() -> None:
    x = np.full((1, 1, 96, 96), 0.25, np.float16)
    found: Any = nn.functional.avg_pool2d(x, 96)
    assert found.data.item() == 0.25
    assert found.dtype == np.float16


def test_items_that_are_not_the_largest_get_zeros_beside_infinities() -> None:
    x: Any = tensor(np.array([[[1.0, 2.0, 0.0]]]), requires_grad=True)
    y = nn.functional.max_pool2d(x, (1, 2), stride=1)
    for create_graph in (False, True):
        x.grad = None
        y.backward(np.array([[[np.inf, 1.0]]]), retain_graph=True, create_graph=create_graph)
        np.testing.assert_array_equal(x.grad.data, [[[0.0, np.inf, 0.0]]])
