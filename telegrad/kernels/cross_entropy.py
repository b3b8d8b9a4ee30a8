"""Softmax and cross entropy, forward and backward, over the last axis.

Cross entropy saves nothing between forward and backward: the backward computes the softmax again
from the logits, which the caller has anyway. CuPy arrays are computed by `cuda/softmax.cu`, with a
warp or a block of threads for each row.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.arrays import array_beside, check_devices, computing_dtype, is_cupy, namespace
from telegrad.kernels.cuda import Kernel, blocks_for, contiguous
from telegrad.types import Array


def log_softmax(logits: Array) -> Array:
    """Returns the logarithm of `softmax(logits)`; exact for logits of any size."""
    if type(logits) is not np.ndarray and is_cupy(logits):
        return _rows_launched(_FORWARD, logits, log=True)
    shifted = _shifted(logits)
    if not shifted.size:
        return shifted.astype(logits.dtype)  # type: ignore[no-any-return]
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result.astype(logits.dtype, copy=False)


def softmax(logits: Array) -> Array:
    """Returns positive numbers that sum to 1 along the last axis.

    >>> import numpy as np
    >>> softmax(np.array([1000.0, 1000.0]))
    array([0.5, 0.5])
    """
    if type(logits) is not np.ndarray and is_cupy(logits):
        return _rows_launched(_FORWARD, logits, log=False)
    weights: Array = np.exp(_shifted(logits))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights.astype(logits.dtype, copy=False)


def softmax_gradient(gradient: Array, y: Array) -> Array:
    """Returns the gradient of logits whose softmax is `y`: `y * (g - sum(g * y))`."""
    if is_cupy(y):
        return _rows_launched(_BACKWARD, gradient, y, log=False)
    wide: Any = gradient.astype(computing_dtype(y.dtype), copy=False)
    along = (wide * y).sum(axis=-1, keepdims=True)
    result: Array = y * (wide - along)
    return result.astype(y.dtype, copy=False)


def log_softmax_gradient(gradient: Array, y: Array) -> Array:
    """Returns the gradient of logits whose log-softmax is `y`: `g - exp(y) * sum(g)`."""
    if is_cupy(y):
        return _rows_launched(_BACKWARD, gradient, y, log=True)
    wide: Any = gradient.astype(computing_dtype(y.dtype), copy=False)
    result: Array = wide - np.exp(y) * wide.sum(axis=-1, keepdims=True)
    return result.astype(y.dtype, copy=False)


def cross_entropy(
    logits: Array,
    labels: Array,
    *,
    checked: bool = False,
    ignored: int | None = None,
    found: Array | None = None,
) -> Array:
    """Returns `-log_softmax(logits)[..., label]` for each label.

    Args:
        logits: Floating-point numbers, of shape (..., classes).
        labels: Integers from 0 to classes - 1, of shape (...).
        checked: True if the caller has already checked the labels.
        ignored: A label whose loss and gradient are 0; None for none.
        found: For labels on a GPU, in place of a check: two integers there. A label that is no
            class is ignored, too, and is written to the first if it is negative, else to the
            second.

    Returns:
        One number per label, of shape (...) and the dtype of `logits`.

    Raises:
        TypeError: The labels are not integers.
        ValueError: A label is not a class, the shapes do not fit, or logits and labels are on
            different devices.
    """
    labels = labels if checked else _check(logits, labels, ignored, found)
    if type(logits) is not np.ndarray and is_cupy(logits):
        return _launch_losses(logits, labels, ignored, found)
    places, counted = (labels, None) if ignored is None else _counted(labels, ignored)
    shifted = _shifted(logits)
    losses: Array = np.log(np.exp(shifted).sum(axis=-1)) - shifted[_places(places)]
    if counted is not None:
        losses = np.where(counted, losses, 0)
    return losses.astype(logits.dtype, copy=False)


def mean_cross_entropy(
    logits: Array, labels: Array, *, ignored: int | None = None, found: Array | None = None
) -> tuple[Array, Array]:
    """Returns the mean of `cross_entropy` over the labels that count, and 1 over their number.

    With no such label both are NaN or infinite.

    Args:
        logits: The logits, as for `cross_entropy`.
        labels: The labels, as for `cross_entropy`.
        ignored: A label that does not count; None for none.
        found: Two integers for labels that are no class, as for `cross_entropy`.
    """
    labels = _check(logits, labels, ignored, found)
    losses: Any = cross_entropy(logits, labels, checked=True, ignored=ignored, found=found)
    wide = computing_dtype(logits.dtype)
    if type(logits) is not np.ndarray and is_cupy(logits):
        xp = namespace(logits)
        made = xp.empty((), logits.dtype), xp.empty((), wide)
        sizes = (labels.size, logits.shape[-1], _least(ignored))
        labels = _indices(labels)
        how: Any = {"blocks": 1, "threads": 1024, "ITEM": logits.dtype}
        _MEAN.launch(losses, labels, *made, *sizes, **how)
        return made
    count = labels.size if ignored is None else np.count_nonzero(labels != ignored)
    factor: Any = np.divide(1, count, dtype=wide)
    mean: Any = losses.sum(dtype=wide) * factor
    return np.asarray(mean).astype(logits.dtype, copy=False), np.asarray(factor)


def cross_entropy_gradient(
    gradient: Array,
    logits: Array,
    labels: Array,
    *,
    factor: Array | None = None,
    ignored: int | None = None,
) -> Array:
    """Returns the gradient of the logits.

    Args:
        gradient: The gradient of the result of `cross_entropy`: in its shape, or one number for
            all.
        logits: The logits given to `cross_entropy`.
        labels: The labels given to `cross_entropy`.
        factor: The second result of `mean_cross_entropy`; None for 1.
        ignored: The value given to `cross_entropy`. Labels that are no class are ignored, too.
    """
    if type(logits) is not np.ndarray and is_cupy(logits):
        return _launch_gradient(gradient, logits, labels, factor, ignored)
    places, counted = (labels, None) if ignored is None else _counted(labels, ignored)
    result: Array = np.exp(_shifted(logits))
    result /= result.sum(axis=-1, keepdims=True)
    result[_places(places)] -= 1  # no two labels share a row, so no place occurs twice
    result *= (gradient if factor is None else gradient * factor)[..., None]
    if counted is not None:
        result[~counted] = 0
    return result.astype(logits.dtype, copy=False)


# -- on CuPy arrays ------------------------------------------------------------------------------

_FORWARD: Final = Kernel("softmax", "softmax_forward")
_BACKWARD: Final = Kernel("softmax", "softmax_backward")
_LOSSES: Final = Kernel("softmax", "cross_entropy_forward")
_GRADIENT: Final = Kernel("softmax", "cross_entropy_backward")
_MEAN: Final = Kernel("softmax", "cross_entropy_mean")
_WARP_BYTES: Final = 2048
"""Bytes of a row that one warp reads; longer ones have a block."""


def _rows_launched(kernel: Kernel, x: Any, *others: Any, log: bool) -> Array:
    like = others[-1] if others else x
    if like.shape != x.shape:
        raise ValueError(f"the gradient has shape {x.shape}, {like.shape} needed")
    inputs = [contiguous(each.astype(like.dtype, copy=False)) for each in (x, *others)]
    result: Array = namespace(like).empty(like.shape, like.dtype)
    warps, how = row_teams(like)
    kernel.launch(*inputs, result, *_rows(like), warps, int(log), **how)
    return result


def _launch_losses(logits: Any, labels: Any, ignored: int | None, found: Any) -> Array:
    losses: Array = namespace(logits).empty(labels.shape, logits.dtype)
    labels = _indices(labels)
    warps, how = row_teams(logits)
    arrays = (contiguous(logits), labels, losses, found)
    _LOSSES.launch(*arrays, *_rows(logits), warps, _least(ignored), **how)
    return losses


def _launch_gradient(gradient: Any, logits: Any, labels: Any, factor: Any, ignored: Any) -> Array:
    result: Array = namespace(logits).empty(logits.shape, logits.dtype)
    labels = array_beside(labels, logits)
    one = gradient.ndim == 0 or not any(gradient.strides)
    if one:
        gradient = gradient[(slice(0, 1),) * gradient.ndim]
    elif gradient.shape != labels.shape:
        raise ValueError(f"the gradient has shape {gradient.shape}, {labels.shape} needed")
    gradient = contiguous(gradient.astype(logits.dtype, copy=False))
    labels = _indices(labels)
    warps, how = row_teams(logits)
    arrays = (gradient, factor, contiguous(logits), labels, result)
    sizes = (*_rows(logits), warps, _least(ignored), int(one))
    _GRADIENT.launch(*arrays, *sizes, **how)
    return result


def _least(ignored: int | None) -> int:
    """Returns the ignored label; a number that is ignored anyway for None."""
    return -(1 << 63) if ignored is None else ignored


def _rows(x: Any) -> tuple[int, int]:
    return math.prod(x.shape[:-1]), x.shape[-1]


def _indices(labels: Any) -> Any:
    return contiguous(labels.astype(np.int64, copy=False))


def row_teams(x: Any) -> tuple[int, dict[str, Any]]:
    """Returns 1 if each row of `x` has a warp, 0 if it has a block; and the launch's options."""
    rows, items = _rows(x)
    if items * x.itemsize <= _WARP_BYTES:
        return 1, {"blocks": blocks_for(rows, 8), "threads": 256, "ITEM": x.dtype}
    # Two packs of 16 bytes for each thread; functions of double take many registers.
    warps = min(16 if x.itemsize < 8 else 8, -(-items * x.itemsize // 1024))
    return 0, {"blocks": blocks_for(rows, 1), "threads": 32 * warps, "ITEM": x.dtype}


# -- on NumPy arrays -----------------------------------------------------------------------------


def _shifted(logits: Any) -> Any:
    wide = logits if logits.dtype.itemsize > 2 else logits.astype(np.float32)
    return wide - wide.max(axis=-1, keepdims=True) if wide.size else wide


def _counted(labels: Any, ignored: int) -> tuple[Any, Any]:
    """Returns labels that are classes, and a mask of those that count."""
    counted = np.asarray(labels) != ignored
    return np.where(counted, labels, 0), counted


def one_hot(labels: Array, *, classes: int, dtype: Any) -> Array:
    """Returns an array of shape (..., classes) with 1 at each label and 0 elsewhere."""
    xp = namespace(labels)
    hot: Array = (labels[..., None] == xp.arange(classes)).astype(dtype)
    return hot


def _places(labels: Any) -> tuple[Any, ...]:
    """Returns the index that selects the logit of each label."""
    labels = np.asarray(labels)
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    last = labels.ndim - 1
    before = [np.arange(n).reshape(-1, *[1] * (last - k)) for k, n in enumerate(labels.shape)]
    return (*before, labels)


def _check(logits: Array, given: Any, ignored: int | None, found: Array | None) -> Array:
    labels = array_beside(given, logits)
    check_devices("cross entropy", logits, labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels are integers, one per row of the logits, not {labels.dtype}")
    if labels.shape != logits.shape[:-1] or logits.ndim == 0:
        raise ValueError(
            f"logits of shape (..., classes) need labels of shape (...); "
            f"got {logits.shape} and {labels.shape}"
        )
    if found is None:
        counted: Any = labels if ignored is None else labels * (labels != ignored)
        check_classes(label_range(counted), logits.shape[-1])
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
