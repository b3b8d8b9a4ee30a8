"""Elementwise functions of several arguments, which broadcast, each with its gradient rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import numpy_function
from telegrad.autograd.ops import where
from telegrad.autograd.ops.arithmetic import base_slope, exponent_slope

__all__: list[str] = []


def _present(g: Any, a: Any, b: Any, wins: Any) -> Any:
    # As _share, but what is no number loses against what is one.
    return where(b != b, g, where(wins, g, where(a == b, g * 0.5, 0.0)))


def _over(x: Any, length: Any) -> Any:
    """Returns `x / length`, 0 at length 0."""
    return x / where(length == 0, 1.0, length)


def _turned(x: Any, x1: Any, x2: Any) -> Any:
    # x / (x1^2 + x2^2) without the squares, which overflow, and vanish, where lengths do not.
    length = np.hypot(x1, x2)
    return _over(_over(x, length), length)


def _of_sum(x: Any, y: Any) -> Any:
    """Returns the logarithm of which part of exp(y) exp(x) is; of nothing, none is a part."""
    return x - where(y == -np.inf, 0.0, y)


_H: Final = "holomorphic"

# fmt: off
float_power  = numpy_function(np.float_power,  "x1 x2", complex_rule=_H, x1=lambda g, x1, x2: g * base_slope(x1, x2),
                                                                         x2=lambda g, y, x1: g * exponent_slope(y, x1))
remainder    = numpy_function(np.remainder,    "x1 x2", x1=lambda g: g, x2=lambda g, x1, x2: -g * np.floor_divide(x1, x2))
fmod         = numpy_function(np.fmod,         "x1 x2", x1=lambda g: g, x2=lambda g, x1, x2: -g * np.trunc(x1 / x2))
fmax         = numpy_function(np.fmax,         "x1 x2", x1=lambda g, x1, x2: _present(g, x1, x2, x1 > x2), x2=lambda g, x1, x2: _present(g, x2, x1, x2 > x1))
fmin         = numpy_function(np.fmin,         "x1 x2", x1=lambda g, x1, x2: _present(g, x1, x2, x1 < x2), x2=lambda g, x1, x2: _present(g, x2, x1, x2 < x1))
hypot        = numpy_function(np.hypot,        "x1 x2", x1=lambda g, y, x1: g * _over(x1, y), x2=lambda g, y, x2: g * _over(x2, y))
arctan2      = numpy_function(np.arctan2,      "x1 x2", x1=lambda g, x1, x2: g * _turned(x2, x1, x2),
                                                        x2=lambda g, x1, x2: -g * _turned(x1, x1, x2))
logaddexp    = numpy_function(np.logaddexp,    "x1 x2", x1=lambda g, y, x1: g * np.exp(_of_sum(x1, y)),  x2=lambda g, y, x2: g * np.exp(_of_sum(x2, y)))
logaddexp2   = numpy_function(np.logaddexp2,   "x1 x2", x1=lambda g, y, x1: g * np.exp2(_of_sum(x1, y)), x2=lambda g, y, x2: g * np.exp2(_of_sum(x2, y)))
copysign     = numpy_function(np.copysign,     "x1 x2", x1=lambda g, y, x1: g * (np.sign(y) * np.sign(x1)), x2=lambda g: g * 0)
heaviside    = numpy_function(np.heaviside,    "x1 x2", x1=lambda g: g * 0, x2=lambda g, x1: where(x1 == 0, g, 0.0))
ldexp        = numpy_function(np.ldexp,        "x1 x2", x1=lambda g, x2: np.ldexp(g, x2))
modf         = numpy_function(np.modf,         "x", outputs="fraction whole", x=lambda g: g[0])
frexp        = numpy_function(np.frexp,        "x", outputs="mantissa exponent", x=lambda g, exponent: None if g[0] is None else np.ldexp(g[0], -exponent))
divmod_      = numpy_function(np.divmod,       "x1 x2", outputs="quotient remainder", x1=lambda g: g[1],
                                                        x2=lambda g, quotient: None if g[1] is None else -g[1] * quotient)
# fmt: on
