"""Clipping of gradients, which keeps steps short where a loss is steep.

Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013).
The functions replace gradients and never write into them, so other references to a gradient keep
its values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from telegrad import kernels
from telegrad.arrays import CPU, computing_dtype, device_of, is_floating, namespace
from telegrad.autograd import RowSparse, Tensor


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    *,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float | Tensor:
    """Scales all gradients by one factor so that their joint norm is at most `max_norm`.

    Args:
        parameters: The parameters; those without `grad` are ignored.
        max_norm: The largest norm; not negative.
        norm_type: The order p of the p-norm; `math.inf` for the largest item.
        error_if_nonfinite: True to raise if the norm is infinite or NaN. If False, the gradients
            are scaled by such a norm.

    Returns:
        The norm before scaling. Squares of float16 and bfloat16 are computed in float32. If all
        gradients are on one GPU, the norm is a Tensor without axes there, and this function does
        not wait; `float(norm)` does. With `error_if_nonfinite`, or with gradients on several
        devices, it waits once for each.

    Raises:
        ValueError: The norm is not finite and `error_if_nonfinite` is True, or `max_norm` is
            negative; no gradient was changed.

    >>> from telegrad import tensor
    >>> x = tensor([3.0, 4.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> clip_grad_norm_(x, 1.0)
    10.0
    >>> x.grad.data.round(4)
    array([0.6, 0.8])
    """
    if not max_norm >= 0:
        raise ValueError(f"max_norm must not be negative, it is {max_norm}")
    found = _with_gradient(parameters)
    items = [_items(p.grad) for p in found]
    devices = {device_of(x) for x in items if x.size}
    if len(devices) == 1 and CPU not in devices and not error_if_nonfinite:
        return _clip_there(found, [x for x in items if x.size], max_norm, norm_type)
    total = _norm(_parts(items, norm_type), norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise ValueError(
            f"the gradients' norm of order {norm_type} is {total}; find the operation that made "
            "them so, or pass error_if_nonfinite=False"
        )
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:
        with np.errstate(invalid="ignore"):  # infinite items times zero
            for p in found:
                _replace(p, (p.grad if isinstance(p.grad, RowSparse) else p.grad.data) * factor)
    return total


def _clip_there(found: list[Any], items: list[Any], max_norm: float, order: float) -> Tensor:
    """Clips gradients that are all on one GPU, without a wait, and returns their norm there."""
    if order == 2 and all(is_floating(x.dtype) for x in items):
        total, factor = kernels.joint_norm(items, max_norm)
    else:
        xp = namespace(*items)
        joint = xp.stack([_part(x, order) for x in items])
        total = joint.max() if math.isinf(order) else joint.sum() ** (1 / order)
        factor = xp.minimum(max_norm / (total + 1e-6), 1.0)  # NaN stays NaN
    dense = [p for p in found if not isinstance(p.grad, RowSparse) and p.grad.size]
    for p in found:
        if isinstance(p.grad, RowSparse):
            _replace(p, p.grad * factor)
    clipped = kernels.scaled([p.grad.data for p in dense], factor)
    for p, gradient in zip(dense, clipped, strict=True):
        _replace(p, gradient)
    return Tensor(total)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limits the items of all gradients to the range from `-clip_value` to `clip_value`.

    Args:
        parameters: The parameters; those without `grad` are ignored.
        clip_value: The largest size of an item; not negative.

    Raises:
        ValueError: `clip_value` is negative.

    >>> from telegrad.autograd import tensor
    >>> x = tensor([1.0, 2.0], requires_grad=True)
    >>> (x * np.array([3.0, -0.5])).sum().backward()
    >>> clip_grad_value_([x], 1.0)
    >>> x.grad
    tensor([ 1. , -0.5])
    """
    if not clip_value >= 0:
        raise ValueError(f"clip_value must not be negative, it is {clip_value}")
    for p in _with_gradient(parameters):
        gradient = p.grad
        if isinstance(gradient, RowSparse):
            whole = gradient.coalesce()
            _replace(p, RowSparse(whole.rows, _clipped(whole.values, clip_value), whole.shape))
        else:
            _replace(p, _clipped(gradient.data, clip_value))


def _with_gradient(parameters: Tensor | Iterable[Tensor]) -> list[Any]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in given if p.grad is not None]


def _items(gradient: Any) -> Any:
    return gradient.coalesce().values if isinstance(gradient, RowSparse) else gradient.data


def _parts(arrays: list[Any], order: float) -> dict[str, list[Any]]:
    """Returns the parts of the norm by device."""
    parts: dict[str, list[Any]] = {}
    for items in arrays:
        if items.size:
            parts.setdefault(device_of(items), []).append(_part(items, order))
    return parts


def _norm(parts: dict[str, list[Any]], order: float) -> float:
    # All parts were computed first, so that each device is waited for once.
    found = [x for some in parts.values() for x in namespace(*some).stack(some).tolist()]
    if math.isnan(sum(found)):
        return math.nan
    return max(found, default=0.0) if math.isinf(order) else math.pow(sum(found), 1 / order)


def _part(items: Any, order: float) -> Any:
    """Returns the sum whose root is the norm; for `math.inf` the largest size."""
    wide = items.astype(computing_dtype(items.dtype), copy=False)
    if order == 2 and wide.dtype.kind == "f":
        flat = wide.ravel()
        return flat @ flat
    sizes = namespace(items).abs(wide)
    return sizes.max() if math.isinf(order) else (sizes**order).sum()


def _clipped(items: Any, limit: float) -> Any:
    xp = namespace(items)
    return xp.minimum(xp.maximum(items, -limit), limit)


def _replace(parameter: Any, gradient: Any) -> None:
    parameter.grad = gradient if isinstance(gradient, RowSparse) else Tensor(gradient)
