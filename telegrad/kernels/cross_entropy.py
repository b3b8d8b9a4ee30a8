"""Softmax and cross entropy, forward and backward, over the last axis.

Each function takes NumPy or CuPy arrays. Both libraries have the functions that are needed, and for
CuPy a fused kernel is not worth its compilation yet, so one implementation serves both.

Nothing is saved between forward and backward: the backward computes the softmax again from the
logits, which the caller has anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import array_beside, check_devices, is_cupy, namespace
from telegrad.types import Array

__all__ = [
    "check_classes",
    "cross_entropy",
    "cross_entropy_gradient",
    "label_range",
    "log_softmax",
    "one_hot",
    "softmax",
]


def log_softmax(logits: Array) -> Array:
    """Returns the logarithm of `softmax(logits)`; exact for logits of any size."""
    shifted: Any = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def softmax(logits: Array) -> Array:
    """Returns positive numbers that sum to 1 along the last axis.

    >>> import numpy as np
    >>> softmax(np.array([1000.0, 1000.0]))
    array([0.5, 0.5])
    """
    weights: Any = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    result: Array = weights
    return result


def cross_entropy(logits: Array, labels: Array, *, checked: bool = False) -> Array:
    """Returns `-log_softmax(logits)[..., label]` for each label.

    Args:
        logits: Floating-point numbers, of shape (..., classes).
        labels: Integers from 0 to classes - 1, of shape (...).
        checked: True if the caller has already checked the labels.

    Returns:
        One number per label, of shape (...) and the dtype of `logits`.

    Raises:
        TypeError: The labels are not integers.
        ValueError: A label is not a class, the shapes do not fit, or logits and labels are on
            different devices.
    """
    labels = labels if checked else _check(logits, labels)
    shifted: Any = logits - logits.max(axis=-1, keepdims=True)
    chosen = shifted[_places(shifted, labels)]
    result: Array = np.log(np.exp(shifted).sum(axis=-1)) - chosen
    return result


def cross_entropy_gradient(gradient: Array, logits: Array, labels: Array) -> Array:
    """Returns the gradient of the logits.

    Args:
        gradient: The gradient of the result of `cross_entropy`: in its shape, or one number for
            all.
        logits: The logits given to `cross_entropy`.
        labels: The labels given to `cross_entropy`.
    """
    result: Any = softmax(logits)
    result[_places(result, labels)] -= 1  # no two labels share a row, so no place occurs twice
    result *= gradient[..., None]
    final: Array = result
    return final


def one_hot(labels: Array, *, classes: int, dtype: Any) -> Array:
    """Returns an array of shape (..., classes) with 1 at each label and 0 elsewhere."""
    xp = namespace(labels)
    hot: Array = (labels[..., None] == xp.arange(classes)).astype(dtype)
    return hot


def _places(logits: Array, labels: Any) -> tuple[Any, ...]:
    """Returns the index that selects the logit of each label."""
    if type(labels) is np.ndarray and labels.ndim == 1 and type(logits) is np.ndarray:
        return np.arange(len(labels)), labels
    xp = namespace(logits)
    labels = array_beside(labels, logits)
    if labels.ndim == 1:
        return xp.arange(len(labels)), labels
    last = labels.ndim - 1
    before = [xp.arange(n).reshape(-1, *[1] * (last - k)) for k, n in enumerate(labels.shape)]
    return (*before, labels)


def _check(logits: Array, given: Any) -> Array:
    labels = array_beside(given, logits)
    check_devices("cross entropy", logits, labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels are integers, one per row of the logits, not {labels.dtype}")
    if labels.shape != logits.shape[:-1] or logits.ndim == 0:
        raise ValueError(
            f"logits of shape (..., classes) need labels of shape (...); "
            f"got {logits.shape} and {labels.shape}"
        )
    check_classes(label_range(labels), logits.shape[-1])
    return labels


def label_range(labels: Array) -> tuple[int, int]:
    """Returns the smallest and the largest label; (0, -1) if there are none.

    For a CuPy array it waits once for the GPU.
    """
    if not labels.size:
        return 0, -1
    if is_cupy(labels):
        low, high = namespace(labels).stack((labels.min(), labels.max())).tolist()
        return low, high
    return int(labels.min()), int(labels.max())


def check_classes(found: tuple[int, int], classes: int) -> None:
    """Checks that labels in the range `found` are all from 0 to `classes` - 1.

    Raises:
        ValueError: A label is out of range.
    """
    low, high = found
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels from {low} to {high} with logits for {classes} classes (0 to {classes - 1})"
        )
