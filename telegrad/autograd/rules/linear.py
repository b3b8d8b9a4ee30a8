"""What a linear layer computes, as one operation: all leading axes together, in one matrix product.

Written as `x @ weight.T + bias`, the gradients of batches of matrices would be products one by one,
added up afterwards, and that of the weight would come transposed, which optimizers then read
against the grain.
"""

from __future__ import annotations

import math
from typing import Any

from telegrad.autograd.extend import primitive
from telegrad.autograd.ops import reshape

__all__ = ["linear"]


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    y = (x if x.ndim == 2 else _rows(x)) @ weight.T
    if bias is not None and bias.dtype == y.dtype:
        y += bias
    elif bias is not None:
        y = y + bias
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], len(weight))


def _rows(a: Any) -> Any:
    """`a` as a matrix, its last axis kept."""
    return a if a.ndim == 2 else reshape(a, to=(math.prod(a.shape[:-1]), a.shape[-1]))


def _of_x(g: Any, weight: Any) -> Any:
    if g.ndim == 2:
        return g @ weight
    return reshape(_rows(g) @ weight, to=(*g.shape[:-1], weight.shape[1]))


def _of_weight(g: Any, x: Any) -> Any:
    return g.T @ x if g.ndim == 2 else _rows(g).T @ _rows(x)


# fmt: off
# x: (..., m), weight: (n, m), bias: (n,) or None; `x @ weight.T + bias`, of shape (..., n).
linear = primitive("linear", _linear, "x weight bias", complex_rule="holomorphic",
                   x=_of_x,
                   weight=_of_weight,
                   bias=lambda g: (g if g.ndim == 2 else _rows(g)).sum(0))
# fmt: on
