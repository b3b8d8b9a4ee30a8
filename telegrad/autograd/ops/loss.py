"""Softmax and cross entropy over the last axis, on the kernels, with their gradient rules."""

from __future__ import annotations

from typing import Any

from telegrad import kernels
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.ops.reduction import reduce_sum
from telegrad.autograd.tensor import Tensor

__all__ = ["cross_entropy", "cross_entropy_gradient", "log_softmax", "softmax"]


def _turn(g: Any, y: Any) -> Any:
    """The gradient of logits whose softmax is `y`."""
    return y * (g - reduce_sum(g * y, axis=-1, keepdims=True))


def _distance(a: Any, labels: Any) -> Any:
    """How far the softmax is from being right: softmax minus one-hot."""
    plain = labels.data if isinstance(labels, Tensor) else labels
    return softmax(a) - kernels.one_hot(plain, classes=a.shape[-1], dtype=a.dtype)


cross_entropy_gradient: Operation  # declared, as the rule of cross_entropy names it

# fmt: off
softmax       = primitive("softmax",     kernels.softmax,     "a", a=lambda g, y: _turn(g, y))
log_softmax   = primitive("log_softmax", kernels.log_softmax, "a",
                          a=lambda g, a: g - softmax(a) * reduce_sum(g, axis=-1, keepdims=True))
cross_entropy = primitive("cross_entropy", kernels.cross_entropy, "a labels",
                          a=lambda g, a, labels: cross_entropy_gradient(g, a, labels))
cross_entropy_gradient = primitive(
    "cross_entropy_gradient", kernels.cross_entropy_gradient, "b a labels",
    b=lambda g, a, labels: reduce_sum(g * _distance(a, labels), axis=-1),
    a=lambda g, b, a: _turn(g * b[..., None], softmax(a)))
# fmt: on
