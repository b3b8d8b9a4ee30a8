"""Functions of one argument between the layers of a network, each with its gradient rule.

At a kink the slope is that of the side where it is zero, or of the left; PyTorch's choice.
"""

from __future__ import annotations

import math
from typing import Any, Final

from telegrad import kernels
from telegrad.arrays import namespace
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.ops import exp, sigmoid, tanh, where
from telegrad.types import Array

__all__ = ["elu", "gelu", "hardtanh", "leaky_relu", "masked_scale", "silu", "softplus"]

_PEAK: Final = 1 / math.sqrt(2 * math.pi)
_SCALE: Final = math.sqrt(2 / math.pi)
_CUBE: Final = 0.044715


def _leaky_relu(a: Any, *, slope: float = 0.01) -> Array:
    made: Array = namespace(a).where(a > 0, a, a * slope)
    return made


def _elu(a: Any, *, alpha: float = 1.0, scale: float = 1.0) -> Array:
    xp = namespace(a)
    made: Any = xp.expm1(xp.minimum(a, 0))
    made *= alpha
    made += xp.maximum(a, 0)
    if scale != 1.0:
        made *= scale
    return made  # type: ignore[no-any-return]


def _hardtanh(a: Any, *, low: float = -1.0, high: float = 1.0) -> Array:
    made: Array = namespace(a).clip(a, low, high)
    return made


def _softplus(a: Any) -> Array:
    # max(a, 0) + log(1 + exp(-|a|)): never overflows.
    xp = namespace(a)
    made: Any = xp.asarray(xp.exp(-xp.abs(a)))
    xp.log1p(made, out=made)
    made += xp.maximum(a, 0)
    return made  # type: ignore[no-any-return]


def _silu(a: Any) -> Array:
    # a / (1 + exp(-a)) with exponentials of negative numbers only: never overflows.
    xp = namespace(a)
    made: Any = xp.asarray(xp.exp(-xp.abs(a)))
    made += 1
    xp.divide(a, made, out=made)
    made *= xp.exp(xp.minimum(a, 0))
    return made  # type: ignore[no-any-return]


def _silu_slope(s: Any, a: Any) -> Any:
    return s * (1 + a * (1 - s))


def _bend(x: Any, approximate: str) -> Any:
    """The second derivative of GELU."""
    square = x * x
    if approximate != "tanh":
        return exp(square * -0.5) * (2 - square) * _PEAK
    t = tanh(x * (1 + square * _CUBE) * _SCALE)
    slope = (1 + square * (3 * _CUBE)) * _SCALE
    curve = x * (6 * _CUBE * _SCALE)
    return (1 - t * t) * (slope + 0.5 * x * (curve - 2 * t * slope * slope))


def _gelu_slope(b: Any, x: Any, *, approximate: str = "none") -> Array:
    made: Any = kernels.gelu_slope(x, approximate=approximate)
    made *= b
    return made  # type: ignore[no-any-return]


def _masked_scale(a: Any, mask: Any, *, scale: float = 1.0) -> Array:
    made: Any = a * mask
    made *= scale
    return made  # type: ignore[no-any-return]


gelu_slope: Operation  # declared, as rules name what stands below
masked_scale: Operation
_FORM: Final = {"approximate": "none"}

# fmt: off
leaky_relu   = primitive("leaky_relu",   _leaky_relu,   "a", options={"slope": 0.01}, a=lambda g, a, slope: where(a > 0, g, g * slope))
elu          = primitive("elu",          _elu,          "a", options={"alpha": 1.0, "scale": 1.0},
                         a=lambda g, y, alpha, scale: where(y > 0, g * scale, g * (y + alpha * scale)))
hardtanh     = primitive("hardtanh",     _hardtanh,     "a", options={"low": -1.0, "high": 1.0}, a=lambda g, a, low, high: g * ((a > low) & (a < high)))
softplus     = primitive("softplus",     _softplus,     "a", a=lambda g, a: g * sigmoid(a))
silu         = primitive("silu",         _silu,         "a", a=lambda g, a: g * _silu_slope(sigmoid(a), a))
gelu         = primitive("gelu",         kernels.gelu,  "x", options=_FORM, x=lambda g, x, approximate: gelu_slope(g, x, approximate=approximate))
gelu_slope   = primitive("gelu_slope",   _gelu_slope,   "b x", options=_FORM, b=lambda g, x, approximate: gelu_slope(g, x, approximate=approximate),
                                                                              x=lambda g, b, x, approximate: g * b * _bend(x, approximate))
masked_scale = primitive("masked_scale", _masked_scale, "a mask", options={"scale": 1.0}, a=lambda g, mask, scale: masked_scale(g, mask, scale=scale))
# fmt: on
