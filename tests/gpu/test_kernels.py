"""The kernels on the GPU against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import kernels
from tests.gpu.comparison import close, host, normal, on_gpu

DTYPES = [np.float32, np.float64]
ROWS = [(7, 10), (4, 3, 5), (1, 1), (300, 1000)]
SHAPES: list[list[tuple[int, ...]]] = [
    [(3, 4)],
    [(3, 4), (), (0, 2), (5,)],
    [(64, 64), (64,), (10, 64), (10,)],
    [(1,)] * 100,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ROWS)
def test_softmax_and_cross_entropy(xp: Any, shape: tuple[int, ...], dtype: Any) -> None:
    logits = 10 * normal(0, *shape, dtype=dtype)
    labels = np.random.default_rng(1).integers(0, shape[-1], shape[:-1])
    gradient = normal(2, *shape[:-1], dtype=dtype)
    there, at = xp.asarray(logits), xp.asarray(labels)
    close(kernels.softmax(there), kernels.softmax(logits))
    close(kernels.log_softmax(there), kernels.log_softmax(logits))
    close(kernels.cross_entropy(there, at), kernels.cross_entropy(logits, labels))
    close(
        kernels.cross_entropy_gradient(xp.asarray(gradient), there, at),
        kernels.cross_entropy_gradient(gradient, logits, labels),
    )
    close(
        kernels.one_hot(at, classes=shape[-1], dtype=dtype),
        kernels.one_hot(labels, classes=shape[-1], dtype=dtype),
    )
    np.testing.assert_array_equal(host(there), logits)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
def test_labels_of_any_integer_type(xp: Any, dtype: Any) -> None:
    logits, labels = normal(0, 4, 3), np.array([2, 0, 1, 2], dtype)
    expected = kernels.cross_entropy(logits, labels)
    close(kernels.cross_entropy(xp.asarray(logits), xp.asarray(labels)), expected)
    close(kernels.cross_entropy(xp.asarray(logits), labels.tolist()), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_logits_are_no_problem(xp: Any, dtype: Any) -> None:
    logits: Any = np.array([[1e30, 0.0], [-1e30, 0.0], [5e4, 5e4]], dtype)
    labels = np.array([0, 1, 0])
    there, at = xp.asarray(logits), xp.asarray(labels)
    close(kernels.cross_entropy(there, at), kernels.cross_entropy(logits, labels))
    ones = np.ones(3, dtype)
    close(
        kernels.cross_entropy_gradient(xp.asarray(ones), there, at),
        kernels.cross_entropy_gradient(ones, logits, labels),
    )


def test_bad_labels(xp: Any) -> None:
    logits = xp.zeros((2, 3))
    for labels, error, words in (
        (xp.asarray([0.0, 1.0]), TypeError, "labels are integers"),
        (xp.asarray([0, 3]), ValueError, "labels from 0 to 3 with logits for 3 classes"),
        (xp.asarray([0]), ValueError, r"\(2, 3\) and \(1,\)"),
        (np.array([0, 1]), ValueError, r"on different devices \(cpu, cuda:0\)"),
    ):
        with pytest.raises(error, match=words):
            kernels.cross_entropy(logits, labels)
    assert kernels.cross_entropy(xp.zeros((0, 3)), xp.zeros(0, dtype=int)).shape == (0,)


@pytest.mark.parametrize("dtype", [np.float16, *DTYPES, np.int32])
@pytest.mark.parametrize("scale", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("shapes", SHAPES)
def test_flatten_and_unflatten(xp: Any, shapes: Any, scale: float, dtype: Any) -> None:
    sources = [(8 * normal(i, *shape)).astype(dtype) for i, shape in enumerate(shapes)]
    there = [xp.asarray(source) for source in sources]
    buffer = kernels.flatten(there, scale=scale)
    expected = kernels.flatten(sources, scale=scale)
    close(buffer, expected)
    back = kernels.unflatten(buffer, shapes, scale=1 / scale)
    for actual, wanted in zip(
        back, kernels.unflatten(expected, shapes, scale=1 / scale), strict=True
    ):
        close(actual, wanted)
    buffer[...] = 0
    for actual, wanted in zip(
        back, kernels.unflatten(expected, shapes, scale=1 / scale), strict=True
    ):
        close(actual, wanted)  # shares no memory with the buffer


def test_flatten_into_a_buffer(xp: Any) -> None:
    out = xp.empty(3, dtype=np.float32)
    column = xp.asarray(np.array([[1.0], [2.0]], np.float32))
    assert kernels.flatten([column.T, xp.asarray(np.array(3, np.float32))], out=out) is out
    assert host(out).tolist() == [1.0, 2.0, 3.0]
    assert on_gpu(out)
    words = "one buffer of arrays on different devices"
    with pytest.raises(ValueError, match=words):
        kernels.flatten([column], out=np.empty(2, np.float32))
    with pytest.raises(ValueError, match=words):
        kernels.flatten([column, np.zeros(1, np.float32)])
