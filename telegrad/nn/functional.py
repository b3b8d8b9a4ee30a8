"""Functions of tensors that have no parameters."""

from __future__ import annotations

from typing import Any

from telegrad.autograd import Tensor, ops
from telegrad.types import Array

__all__ = ["cross_entropy", "log_softmax", "relu", "softmax"]


def relu(x: Tensor) -> Tensor:
    """Returns `x` with what is negative replaced by zero."""
    return _tensor(ops.relu(x))


def softmax(x: Tensor) -> Tensor:
    """Returns positive numbers that sum to 1 along the last axis."""
    return _tensor(ops.softmax(x))


def log_softmax(x: Tensor) -> Tensor:
    """Returns the logarithm of `softmax(x)`, exact also where that is tiny."""
    return _tensor(ops.log_softmax(x))


def cross_entropy(logits: Tensor | Array, labels: Tensor | Array) -> Tensor:
    """Returns the mean of `-log_softmax(logits)` at the labels.

    Args:
        logits: Floating-point, of shape (..., classes).
        labels: Integers from 0 to classes - 1, of shape (...).

    Returns:
        A scalar in the dtype of `logits`.

    Raises:
        TypeError: The labels are no integers.
        ValueError: A label is no class, there are none, or the shapes do not fit.

    >>> import numpy as np
    >>> round(cross_entropy(np.zeros((3, 2)), np.array([0, 1, 0])).item(), 4)
    0.6931
    """
    losses = _tensor(ops.cross_entropy(logits, labels))
    if losses.size == 0:
        raise ValueError("cross entropy of no rows: the mean of nothing is not defined")
    return losses.mean()


def _tensor(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else Tensor(result)
