"""What losses are computed with, each with its gradient rule."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad import kernels
from telegrad.arrays import namespace
from telegrad.autograd.extend import primitive
from telegrad.autograd.ops import clip, log, maximum, sigmoid
from telegrad.autograd.tensor import Tensor
from telegrad.types import Array

__all__ = ["binary_cross_entropy", "cross_entropy_of_logits", "huber", "picked"]

# PyTorch's: the least logarithm of a probability, which is that of 0, and the least p * (1 - p).
_LEAST_LOG: Final = -100.0
_LEAST_PROBABILITY: Final = float(np.exp(_LEAST_LOG))
_LEAST_VARIANCE: Final = 1e-12


def _least(number: float, p: Any) -> float:
    """Returns `number`, or the least positive one of the dtype of `p` where it has none so small."""
    exact = p.dtype.type
    return float(max(exact(number), np.nextafter(exact(0), exact(1))))


def _binary_cross_entropy(p: Any, t: Any) -> Array:
    xp = namespace(p, t)
    with np.errstate(divide="ignore"):
        yes, no = xp.log(p), xp.log1p(-p)
    losses: Array = -(t * xp.maximum(yes, _LEAST_LOG) + (1 - t) * xp.maximum(no, _LEAST_LOG))
    return losses


def _log_odds(p: Any) -> Any:
    least = _least(_LEAST_PROBABILITY, p)
    return log(maximum(p, least)) - log(maximum(1 - p, least))


def _of_logits(x: Any, t: Any) -> Array:
    # max(x, 0) - x t + log(1 + exp(-|x|)): nothing overflows, and no small loss is a difference.
    xp = namespace(x, t)
    losses: Array = xp.log1p(xp.exp(-xp.abs(x))) + (xp.maximum(x, 0) - x * t)
    return losses


def _huber(z: Any, *, delta: float = 1.0) -> Array:
    xp = namespace(z)
    size = xp.abs(z)
    near = xp.minimum(size, delta)
    losses: Any = near * -0.5
    losses += size
    losses *= near
    return losses  # type: ignore[no-any-return]


def _picked(a: Any, labels: Any) -> Array:
    chosen: Any = namespace(a).take_along_axis(a, labels[..., None], axis=-1)
    return chosen[..., 0]  # type: ignore[no-any-return]


def _returned(g: Any, labels: Any, classes: int) -> Any:
    plain = labels.data if isinstance(labels, Tensor) else labels
    return g[..., None] * kernels.one_hot(plain, classes=classes, dtype=g.dtype)


# fmt: off
binary_cross_entropy = primitive("binary_cross_entropy", _binary_cross_entropy, "p t",
                                 p=lambda g, p, t: g * (p - t) / maximum(p * (1 - p), _least(_LEAST_VARIANCE, p)),
                                 t=lambda g, p: -g * _log_odds(p))
cross_entropy_of_logits = primitive("binary_cross_entropy_with_logits", _of_logits, "x t",
                                    x=lambda g, x, t: g * (sigmoid(x) - t), t=lambda g, x: -g * x)
huber                = primitive("huber",  _huber,  "z", options={"delta": 1.0}, z=lambda g, z, delta: g * clip(z, low=-delta, high=delta))
# `a[..., label]` for each label, along the last axis.
picked               = primitive("picked", _picked, "a labels", a=lambda g, labels, shape: _returned(g, labels, shape[-1]))
# fmt: on
