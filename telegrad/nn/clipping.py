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
        norm_type: The order p of the p-norm, positive; `math.inf` for the largest item.
        error_if_nonfinite: True to raise if the norm is infinite or NaN. If False, the gradients
            are scaled by such a norm.

    Returns:
        The norm before scaling. Squares of float16 and bfloat16 are computed in float32. If all
        gradients are on one GPU, the norm is a Tensor without axes there, and this function does
        not wait; `float(norm)` does. With `error_if_nonfinite`, or with gradients on several
        devices, it waits once for each.

    Raises:
        ValueError: The norm is not finite and `error_if_nonfinite` is True, `max_norm` is negative,
            or `norm_type` is not positive; no gradient was changed.

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
    if not norm_type > 0:
        raise ValueError(f"norm_type must be positive, or math.inf; it is {norm_type}")
    found = _with_gradient(parameters)
    on: dict[str, list[Any]] = {}
    for items in [_items(p.grad) for p in found]:
        if items.size:
            on.setdefault(device_of(items), []).append(items)
    # All norms are computed first, so that each device is waited for once.
    with np.errstate(invalid="ignore"):  # an infinite norm, and no limit
        norms = [_norm(items, max_norm, norm_type) for items in on.values()]
    if len(norms) == 1 and CPU not in on and not error_if_nonfinite:
        there, factor = norms[0]
        _scale([p for p in found if p.grad.size], factor)  # empty ones may be elsewhere
        return Tensor(there)
    totals = [float(norm) for norm, _ in norms]
    total = float(np.linalg.norm(totals, norm_type)) if totals else 0.0
    if error_if_nonfinite and not math.isfinite(total):
        raise ValueError(
            f"the gradients' norm of order {norm_type} is {total}; find the operation that made "
            "them so, or pass error_if_nonfinite=False"
        )
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:
        _scale(found, factor)
    return total


def _norm(items: list[Any], max_norm: float, order: float) -> tuple[Any, Any]:
    """Returns the norm of arrays of one device and the factor of clipping, without a wait."""
    if order == 2 and all(is_floating(x.dtype) for x in items):
        return kernels.joint_norm(items, max_norm)
    xp = namespace(*items)
    sizes = [xp.abs(x.astype(computing_dtype(x.dtype), copy=False)) for x in items]
    if math.isinf(order):
        norm = xp.stack([x.max() for x in sizes]).max()
    else:
        norm = xp.stack([(x**order).sum() for x in sizes]).sum() ** (1 / order)
    return norm, xp.minimum(max_norm / (norm + 1e-6), 1.0)  # NaN stays NaN


def _scale(parameters: list[Any], factor: Any) -> None:
    dense = [p for p in parameters if not isinstance(p.grad, RowSparse)]
    with np.errstate(invalid="ignore"):  # infinite items times zero
        for p in parameters:
            if isinstance(p.grad, RowSparse):
                _replace(p, p.grad * factor)
        scaled = kernels.scaled([p.grad.data for p in dense], factor)
    for p, gradient in zip(dense, scaled, strict=True):
        _replace(p, gradient)


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


def _clipped(items: Any, limit: float) -> Any:
    xp = namespace(items)
    return xp.minimum(xp.maximum(items, -limit), limit)


def _replace(parameter: Any, gradient: Any) -> None:
    parameter.grad = gradient if isinstance(gradient, RowSparse) else Tensor(gradient)
