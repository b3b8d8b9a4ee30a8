"""Softmax and cross entropy of CuPy arrays: the kernels against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn
from telegrad.autograd import tensor
from tests.gpu.comparison import host, normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, EDGES, agree, few, laid, layouts, small_grid

__all__ = ["small_grid"]

CLASSES = st.integers(1, 9) | st.sampled_from([n for n in EDGES if n]) | st.just(4100)
SHAPES = st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=2), CLASSES).map(
    lambda pair: (*pair[0], pair[1])
)
LABELS = st.sampled_from([np.uint8, np.int16, np.int32, np.int64])
PAIRS = [
    (kernels.softmax, kernels.softmax_gradient),
    (kernels.log_softmax, kernels.log_softmax_gradient),
]


@few
@given(SHAPES, st.sampled_from(DTYPES), layouts, layouts)
def test_softmax(cupy: Any, shape: Any, dtype: Any, layout: str, other: str) -> None:
    generator = np.random.default_rng(sum(shape))
    x, g = ((3 * generator.normal(size=shape)).astype(dtype) for _ in range(2))
    there, gradient = laid(cupy, x, layout), laid(cupy, g, other)
    for forward, backward in PAIRS:
        y = forward(x)
        agree(cupy, forward(there), y, times=10)
        agree(cupy, backward(gradient, cupy.asarray(y)), backward(g, y), times=30)
    agree(cupy, there, x)


@few
@given(SHAPES, st.sampled_from(DTYPES), LABELS, layouts, st.none() | st.integers(-1, 3))
def test_cross_entropy(
    cupy: Any, shape: Any, dtype: Any, of_labels: Any, layout: str, ignored: Any
) -> None:
    generator = np.random.default_rng(sum(shape))
    x = (3 * generator.normal(size=shape)).astype(dtype)
    labels = generator.integers(0, min(shape[-1], 200), shape[:-1]).astype(of_labels)
    g = generator.normal(size=shape[:-1]).astype(dtype)
    there, at = laid(cupy, x, layout), laid(cupy, labels, layout)
    how: Any = {"ignored": ignored}
    expected = kernels.cross_entropy(x, labels, **how)
    agree(cupy, kernels.cross_entropy(there, at, **how), expected, times=10)
    for here in (g, np.broadcast_to(g.dtype.type(2), g.shape), np.asarray(2, dtype)):
        upstream = cupy.broadcast_to(cupy.asarray(here), here.shape)
        upstream = cupy.asarray(here) if here.strides == g.strides else upstream
        agree(
            cupy,
            kernels.cross_entropy_gradient(upstream, there, at, **how),
            kernels.cross_entropy_gradient(here, x, labels, **how),
            times=10,
        )
    if labels.size and (labels != (-1 if ignored is None else ignored)).any():
        means = kernels.mean_cross_entropy(x, labels, **how)
        found = kernels.mean_cross_entropy(there, at, **how)
        for actual, wanted in zip(found, means, strict=True):
            agree(cupy, actual, wanted, times=10, dtype=dtype)
        agree(
            cupy,
            kernels.cross_entropy_gradient(
                cupy.asarray(np.asarray(1, dtype)), there, at, factor=found[1], **how
            ),
            kernels.cross_entropy_gradient(np.asarray(1, dtype), x, labels, factor=means[1], **how),
            times=10,
        )


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("classes", [7, 1025])
def test_more_rows_than_a_grid(cupy: Any, classes: int) -> None:
    x, labels = normal(0, 33, classes, dtype=np.float32), np.arange(33) % classes
    agree(cupy, kernels.log_softmax(cupy.asarray(x)), kernels.log_softmax(x), times=10)
    found = kernels.cross_entropy(cupy.asarray(x), cupy.asarray(labels))
    agree(cupy, found, kernels.cross_entropy(x, labels), times=10)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0,), (0, 0)])
def test_no_classes_or_no_rows(xp: Any, shape: Any) -> None:
    x = xp.zeros(shape, np.float32)
    for function in (kernels.softmax, kernels.log_softmax):
        assert function(x).shape == shape
    for back in (kernels.softmax_gradient, kernels.log_softmax_gradient):
        assert back(x, x).shape == shape
    assert kernels.cross_entropy(xp.zeros((0, shape[-1])), xp.zeros(0, np.int64)).shape == (0,)


@pytest.mark.parametrize("classes", [4, 700])
def test_infinite_and_missing_numbers(cupy: Any, classes: int) -> None:
    x = np.zeros((5, classes), np.float32)
    x[0, 0], x[1, 1], x[2], x[3, 2], x[4, :3] = -np.inf, np.nan, -np.inf, np.inf, -np.inf
    with np.errstate(all="ignore"):
        for function in (kernels.softmax, kernels.log_softmax):
            agree(cupy, function(cupy.asarray(x)), function(x))


@pytest.mark.parametrize("label", [3, -1, 2**40, -(2**40)])
def test_a_label_that_is_no_class_is_ignored_and_told(cupy: Any, label: int) -> None:
    x, labels = normal(0, 4, 3, dtype=np.float32), np.array([0, label, 2, 1])
    there, at = cupy.asarray(x), cupy.asarray(labels)
    found = cupy.zeros(2, dtype=np.int64)
    losses = kernels.cross_entropy(there, at, ignored=1, found=found)
    expected = kernels.cross_entropy(x, np.array([0, 1, 2, 1]), ignored=1)
    agree(cupy, losses, expected)
    assert host(found).tolist() == ([label, 0] if label < 0 else [0, label])
    gradient = kernels.cross_entropy_gradient(cupy.ones(4, dtype=np.float32), there, at, ignored=1)
    np.testing.assert_array_equal(host(gradient)[[1, 3]], 0)
    assert host(gradient)[0].any()


def test_launches(stand_in_cupy: Any) -> None:
    cupy = stand_in_cupy
    x = tensor(cupy.asarray(normal(0, 3, 5, dtype=np.float32)), requires_grad=True)
    labels, one = cupy.asarray([1, 2, 0]), cupy.ones((), dtype=np.float32)
    with launches() as forward:
        loss = nn.functional.cross_entropy(x, labels)
    with launches() as backward:
        loss.backward(one)
    assert forward == ["cross_entropy_forward", "cross_entropy_mean"]
    assert backward == ["cross_entropy_backward"]
    for function in (nn.functional.softmax, nn.functional.log_softmax):
        x.grad = None
        with launches() as forward:
            y = function(x)
        with launches() as backward:
            y.backward(y.data)
        assert forward == ["softmax_forward"]
        assert backward == ["softmax_backward"]


def test_what_does_not_fit(cupy: Any) -> None:
    x = cupy.ones((2, 3), dtype=np.float32)
    with pytest.raises(ValueError, match=r"gradient has shape \(3,\), \(2,\) needed"):
        kernels.cross_entropy_gradient(x[0], x, cupy.asarray([0, 1]))
    with pytest.raises(ValueError, match=r"gradient has shape \(3,\), \(2, 3\) needed"):
        kernels.softmax_gradient(x[0], x)


def test_small_numbers_are_computed_in_float32() -> None:
    x = (np.arange(2000) % 7).astype(ml_dtypes.bfloat16)
    wide = kernels.softmax(x.astype(np.float32))
    np.testing.assert_array_equal(kernels.softmax(x), wide.astype(x.dtype))
