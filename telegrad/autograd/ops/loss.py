"""Softmax and cross entropy over the last axis, on the kernels, with their gradient rules."""

from __future__ import annotations

import math
from typing import Any, Final

from telegrad import kernels
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.ops.reduction import reduce_sum
from telegrad.autograd.tensor import Tensor

__all__ = ["cross_entropy", "cross_entropy_gradient", "log_softmax", "softmax"]


def _cross_entropy(a: Any, labels: Any, *, mean: bool = False, checked: bool = False) -> Any:
    losses = kernels.cross_entropy(a, labels, checked=checked)
    return losses.mean() if mean else losses


def _turn(g: Any, y: Any) -> Any:
    """The gradient of logits whose softmax is `y`."""
    return y * (g - reduce_sum(g * y, axis=-1, keepdims=True))


def _distance(a: Any, labels: Any) -> Any:
    """How far the softmax is from being right: softmax minus one-hot."""
    plain = labels.data if isinstance(labels, Tensor) else labels
    return softmax(a) - kernels.one_hot(plain, classes=a.shape[-1], dtype=a.dtype)


cross_entropy_gradient: Operation  # declared, as the rule of cross_entropy names it
_LOSS: Final = {"mean": False, "checked": False}

# fmt: off
softmax       = primitive("softmax",     kernels.softmax,     "a", a=_turn)
log_softmax   = primitive("log_softmax", kernels.log_softmax, "a",
                          a=lambda g, a: g - softmax(a) * reduce_sum(g, axis=-1, keepdims=True))
cross_entropy = primitive("cross_entropy", _cross_entropy, "a labels", options=_LOSS,
                          a=lambda g, a, labels, mean: cross_entropy_gradient(g / math.prod(a.shape[:-1]) if mean else g, a, labels))
cross_entropy_gradient = primitive(
    "cross_entropy_gradient", kernels.cross_entropy_gradient, "b a labels",
    b=lambda g, a, labels: reduce_sum(g * _distance(a, labels), axis=-1),
    a=lambda g, b, a: _turn(g * b[..., None], softmax(a)))
# fmt: on
