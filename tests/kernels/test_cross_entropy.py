"""Softmax and cross entropy against their definition, and where the definition overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import kernels

LOGITS = np.random.default_rng(0).normal(size=(4, 3, 5))
LABELS = np.random.default_rng(1).integers(0, 5, (4, 3))


def test_against_the_definition() -> None:
    weights = np.exp(LOGITS)
    expected = weights / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(kernels.softmax(LOGITS), expected)
    np.testing.assert_allclose(kernels.log_softmax(LOGITS), np.log(expected))
    picked = np.take_along_axis(expected, LABELS[..., None], -1)[..., 0]
    np.testing.assert_allclose(kernels.cross_entropy(LOGITS, LABELS), -np.log(picked))


def test_gradient_against_differences() -> None:
    weights = np.random.default_rng(2).uniform(size=LABELS.shape)
    gradient = kernels.cross_entropy_gradient(weights, LOGITS, LABELS)
    numeric = np.zeros_like(LOGITS)
    for index in np.ndindex(LOGITS.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = LOGITS.copy()
            moved[index] += step
            ends.append((weights * kernels.cross_entropy(moved, LABELS)).sum())
        numeric[index] = (ends[0] - ends[1]) / 2e-6
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_logits_are_no_problem(dtype: Any) -> None:
    logits: Any = np.array([[1e30, 0.0], [-1e30, 0.0], [5e4, 5e4]], dtype)
    labels = np.array([0, 1, 0])
    losses: Any = kernels.cross_entropy(logits, labels)
    expected: Any = [0.0, 0.0, np.log(2.0)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    gradient = kernels.cross_entropy_gradient(np.ones(3, dtype), logits, labels)
    assert gradient.tolist() == [[0, 0], [0, 0], [-0.5, 0.5]]
    assert losses.dtype == gradient.dtype == dtype
    wrong = kernels.cross_entropy(logits[:1], np.array([1]))
    assert wrong[0] == dtype(1e30)


def test_arguments_are_left_alone() -> None:
    logits, gradient = LOGITS.copy(), np.ones(LABELS.shape)
    kernels.cross_entropy_gradient(gradient, logits, LABELS)
    np.testing.assert_array_equal(logits, LOGITS)
    np.testing.assert_array_equal(gradient, 1.0)


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
def test_bad_labels(labels: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        kernels.cross_entropy(np.zeros((2, 3)), labels)


def test_no_rows() -> None:
    assert kernels.cross_entropy(np.zeros((0, 3)), np.zeros(0, int)).shape == (0,)
