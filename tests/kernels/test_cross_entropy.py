"""Softmax and cross entropy against their definition, and where the definition overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import kernels
from tests.gpu.comparison import close_on, host, normal, of

LOGITS = np.random.default_rng(0).normal(size=(4, 3, 5))
LABELS = np.random.default_rng(1).integers(0, 5, (4, 3))
DTYPES = [np.float32, np.float64]


def test_against_the_definition(xp: Any) -> None:
    logits, labels = xp.asarray(LOGITS), xp.asarray(LABELS)
    weights = np.exp(LOGITS)
    expected = weights / weights.sum(-1, keepdims=True)
    close_on(xp, kernels.softmax(logits), expected)
    close_on(xp, kernels.log_softmax(logits), np.log(expected))
    picked = np.take_along_axis(expected, LABELS[..., None], -1)[..., 0]
    close_on(xp, kernels.cross_entropy(logits, labels), -np.log(picked))
    close_on(xp, kernels.one_hot(labels, classes=5, dtype=np.float64), np.eye(5)[LABELS])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
def test_labels_of_any_integer_type(xp: Any, dtype: Any) -> None:
    logits, labels = normal(0, 4, 3), np.array([2, 0, 1, 2], dtype)
    expected = -kernels.log_softmax(logits)[np.arange(4), labels]
    close_on(xp, kernels.cross_entropy(xp.asarray(logits), xp.asarray(labels)), expected)
    close_on(xp, kernels.cross_entropy(xp.asarray(logits), labels.tolist()), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_logits_are_no_problem(xp: Any, dtype: Any) -> None:
    logits = xp.asarray(np.array([[1e30, 0.0], [-1e30, 0.0], [5e4, 5e4]], dtype))
    labels = xp.asarray(np.array([0, 1, 0]))
    close_on(xp, kernels.cross_entropy(logits, labels), np.array([0.0, 0.0, np.log(2.0)], dtype))
    ones = xp.asarray(np.ones(3, dtype))
    gradient = kernels.cross_entropy_gradient(ones, logits, labels)
    close_on(xp, gradient, np.array([[0, 0], [0, 0], [-0.5, 0.5]], dtype))
    wrong = kernels.cross_entropy(logits[:1], xp.asarray(np.array([1])))
    assert wrong[0] == dtype(1e30)


def test_arguments_are_left_alone(xp: Any) -> None:
    logits, gradient = xp.asarray(LOGITS.copy()), xp.ones(LABELS.shape)
    kernels.softmax(logits)
    kernels.cross_entropy_gradient(gradient, logits, xp.asarray(LABELS))
    np.testing.assert_array_equal(host(logits), LOGITS)
    np.testing.assert_array_equal(host(gradient), 1.0)


@pytest.mark.parametrize(
    ("labels", "error", "words"),
    [
        (np.array([0.0, 1.0]), TypeError, "labels are integers"),
        (np.array([0, 3]), ValueError, "labels from 0 to 3 with logits for 3 classes"),
        (np.array([-1, 0]), ValueError, "labels from -1 to 0"),
        (np.array([0]), ValueError, r"\(2, 3\) and \(1,\)"),
        (np.eye(3, dtype=int)[:2], ValueError, r"\(2, 3\) and \(2, 3\)"),
    ],
)
def test_bad_labels(xp: Any, labels: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        kernels.cross_entropy(xp.zeros((2, 3)), xp.asarray(labels))


def test_labels_on_another_device(cupy: Any) -> None:
    with pytest.raises(ValueError, match=r"on different devices \(cpu, cuda:0\)"):
        kernels.cross_entropy(cupy.zeros((2, 3)), np.array([0, 1]))


def test_no_rows(xp: Any) -> None:
    losses = kernels.cross_entropy(xp.zeros((0, 3)), xp.zeros(0, dtype=int))
    assert losses.shape == (0,)
    assert of(xp, losses)
