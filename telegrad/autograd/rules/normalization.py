"""Normalisation to mean 0 and variance 1, with a weight and a bias: one function for all layers.

The formulas are those of J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization" (2016). On
arrays each gradient is a kernel; what is to be recorded is written with functions that have rules.
"""

from __future__ import annotations

import math
from typing import Any, Final

from telegrad import kernels
from telegrad.autograd.extend import primitive
from telegrad.autograd.ops import reduce_sum, reshape
from telegrad.autograd.tensor import Tensor

__all__ = ["affine", "normalize"]

_OPTIONS: Final = {"over": 1, "eps": 1e-5, "centred": True}


def _axes(ndim: int, over: int | None) -> tuple[int, ...]:
    if over is None:
        return (0, *range(2, ndim))
    return tuple(range(ndim - over, ndim))


def _beside(part: Any, ndim: int, over: int | None) -> Any:
    """A weight in the shape that broadcasts against what it scales."""
    return reshape(part, to=(-1, *[1] * (ndim - 2))) if over is None else part


def _input(g: Any, standard: Any, scale: Any, weight: Any, over: Any, centred: Any) -> Any:
    of_y, of_standard, of_scale = g[:3]
    first = not any(isinstance(x, Tensor) for x in (of_y, standard, weight))
    if first and of_standard is None and of_scale is None:
        return kernels.normalize_input(of_y, standard, scale, weight, over=over, centred=centred)
    axes = _axes(standard.ndim, over)
    count = math.prod(standard.shape[axis] for axis in axes)
    found = []
    if of_y is not None:
        found.append(of_y if weight is None else of_y * _beside(weight, standard.ndim, over))
    if of_standard is not None:
        found.append(of_standard)
    total: Any = None
    if found:
        upstream = found[0] if len(found) == 1 else found[0] + found[1]
        along = reduce_sum(upstream * standard, axis=axes, keepdims=True) / count
        total = upstream - standard * along
        if centred:
            total = total - reduce_sum(upstream, axis=axes, keepdims=True) / count
        total = total * scale
    if of_scale is not None:
        turned = -of_scale * scale * scale * standard / count
        total = turned if total is None else total + turned
    return total


def _weight(g: Any, standard: Any, over: Any) -> Any:
    if g[0] is None:
        return None
    if isinstance(g[0], Tensor) or isinstance(standard, Tensor):
        return _bias(g[0] * standard, over)
    return kernels.normalize_weight(g[0], standard, over=over)


def _bias(g: Any, over: Any) -> Any:
    if g is None:
        return None
    return reduce_sum(g, axis=_axes(g.ndim, over) if over is None else tuple(range(g.ndim - over)))


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    y: Any = x * weight.reshape(-1, *[1] * (x.ndim - 2))
    y += bias.reshape(-1, *[1] * (x.ndim - 2))
    return y


# fmt: off
normalize = primitive("normalize", kernels.normalize, "x", arrays="weight bias", outputs="y standard scale mean variance", options=_OPTIONS,
                      x=lambda g, standard, scale, weight, over, centred: _input(g, standard, scale, weight, over, centred),
                      weight=lambda g, standard, over: _weight(g, standard, over),
                      bias=lambda g, over: _bias(g[0], over))
# One number per channel, the second axis: `x * weight + bias`.
affine    = primitive("affine", _affine, "x weight bias",
                      x=lambda g, x, weight: g * _beside(weight, x.ndim, None),
                      weight=lambda g, x: _bias(g * x, None),
                      bias=lambda g: _bias(g, None))
# fmt: on
