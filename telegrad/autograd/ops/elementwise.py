"""Elementwise functions that operators, modules and rules use, with their gradient rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import is_array, namespace
from telegrad.autograd.extend import Operation, composed, constants, numpy_function, primitive
from telegrad.autograd.tensor.creation import as_tensor
from telegrad.autograd.tensor.tensor import Tensor, array_of
from telegrad.types import Array


def _sigmoid(a: Any) -> Array:
    # Takes exp of negative numbers only, so that it never overflows.
    xp = namespace(a)
    small = xp.exp(-xp.abs(a))
    result: Array = xp.where(a >= 0, 1 / (1 + small), small / (1 + small))
    return result


def _sign(x: Any) -> Array:
    # CuPy's sign of a complex number is the sign of its real part, unlike NumPy's.
    xp = namespace(x)
    size = xp.abs(x)
    found: Array = xp.sign(x) if x.dtype.kind != "c" else x / xp.where(size == 0, 1, size)
    return found


def _of_sign(g: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind != "c":
        return np.zeros_like(g)
    # z / |z| only rotates: only the part of a change of z that is perpendicular to z counts. At 0
    # the gradient is 0.
    across = conjugate(y) * g
    return y * (across - conjugate(across)) / np.where(x == 0, 1.0, 2 * absolute(x))


_H: Final = "holomorphic"

# fmt: off
sign       = numpy_function(np.sign, "x", complex_rule="own", kernels={"cupy": _sign}, x=_of_sign)
negative   = numpy_function(np.negative,   "x", complex_rule=_H, x=lambda g: -g)
positive   = numpy_function(np.positive,   "x", complex_rule=_H, x=lambda g: g)
copy       = numpy_function(np.copy, "a", complex_rule=_H, options={"order": "K", "subok": False},
                            a=lambda g: g)
absolute   = numpy_function(np.absolute,   "x", complex_rule="own", x=lambda g, x: g * sign(x))
square     = numpy_function(np.square,     "x", complex_rule=_H, x=lambda g, x: g * (2 * x))
sqrt       = numpy_function(np.sqrt,       "x", complex_rule=_H, x=lambda g, y: g * 0.5 / y)
exp        = numpy_function(np.exp,        "x", complex_rule=_H, x=lambda g, y: g * y)
expm1      = numpy_function(np.expm1,      "x", complex_rule=_H, x=lambda g, x: g * exp(x))
log        = numpy_function(np.log,        "x", complex_rule=_H, x=lambda g, x: g / x)
log1p      = numpy_function(np.log1p,      "x", complex_rule=_H, x=lambda g, x: g / (x + 1))
sin        = numpy_function(np.sin,        "x", complex_rule=_H, x=lambda g, x: g * cos(x))
cos: Operation = numpy_function(np.cos, "x", complex_rule=_H, x=lambda g, x: -g * sin(x))
tanh       = numpy_function(np.tanh,       "x", complex_rule=_H, x=lambda g, y: g * (1 - y * y))
conjugate: Operation = numpy_function(np.conjugate, "x", complex_rule="own",
                                      x=lambda g: conjugate(g))
real       = numpy_function(np.real,       "val", view=True, complex_rule="own", val=lambda g: g)
sigmoid    = primitive("sigmoid", _sigmoid, "a", a=lambda g, y: g * y * (1 - y))
relu       = primitive("relu", lambda a: np.maximum(a, 0), "a", a=lambda g, y: g * (y > 0))
# fmt: on


# -- elementwise functions of several arguments ---------------------------------------------------


def _where(condition: Any, a: Any, b: Any) -> Array:
    xp = namespace(condition, a, b)
    chosen: Array = xp.where(condition if is_array(condition) else xp.asarray(condition), a, b)
    return chosen


def _inside(a: Any, low: Any, high: Any) -> Any:
    above = True if low is None else a >= low
    below = True if high is None else a <= high
    return (a == a) & above & below


def base_slope(a: Any, b: Any) -> Any:
    """Returns the slope of `a ** b` with respect to `a`."""
    # b * a ** (b - 1), but 0 where b is 0, whatever a is. There it is b / a, which has the right
    # slope with respect to b, 1 / a, where that exists.
    b = b.item() if isinstance(b, np.generic) else b
    if isinstance(b, (int, float)):
        return b * a ** (b - 1) if b != 0 else 0.0
    zero = b == 0
    at_zero = b / where(zero & (a != 0) & (abs(a) < np.inf), a, 1.0)
    return where(zero, at_zero, b * where(zero, 1.0, a) ** where(zero, 1.0, b - 1))


def exponent_slope(y: Any, a: Any) -> Any:
    """Returns the slope of `y = a ** b` with respect to `b`."""
    # y * log(a), but 0 where a is negative: there the power exists for isolated b only. Where a is
    # 0, it is 0 or, for negative b, the opposite infinity of y: the last 2 stands for a log > 0.
    if y.dtype.kind == "c":
        return y * log(where(a == 0, 1.0, a) + 0j)
    kept = where(a > 0, y, where((a == 0) & (abs(y) == np.inf), -y, 0.0))
    return kept * log(where(a > 0, a, 2.0))


def _share(g: Any, a: Any, b: Any) -> Any:
    # All of g if a is the larger one, half of it if both are equal.
    return where(a > b, g, where(a == b, g * 0.5, 0.0))


# fmt: off
add          = numpy_function(np.add, "x1 x2", complex_rule=_H,
                              x1=lambda g: g,
                              x2=lambda g: g)
subtract     = numpy_function(np.subtract, "x1 x2", complex_rule=_H,
                              x1=lambda g: g,
                              x2=lambda g: -g)
multiply     = numpy_function(np.multiply, "x1 x2", complex_rule=_H,
                              x1=lambda g, x2: g * x2,
                              x2=lambda g, x1: g * x1)
divide       = numpy_function(np.divide, "x1 x2", complex_rule=_H,
                              x1=lambda g, x2: g / x2,
                              x2=lambda g, y, x2: -g * y / x2)
power        = numpy_function(np.power, "x1 x2", complex_rule=_H,
                              x1=lambda g, x1, x2: g * base_slope(x1, x2),
                              x2=lambda g, y, x1: g * exponent_slope(y, x1))
maximum      = numpy_function(np.maximum, "x1 x2",
                              x1=lambda g, x1, x2: _share(g, x1, x2),
                              x2=lambda g, x1, x2: _share(g, x2, x1))
minimum      = numpy_function(np.minimum, "x1 x2",
                              x1=lambda g, x1, x2: _share(g, x2, x1),
                              x2=lambda g, x1, x2: _share(g, x1, x2))
where: Operation = primitive("where", _where, "condition a b", complex_rule=_H,
                             a=lambda g, condition: where(condition, g, 0.0),
                             b=lambda g, condition: where(condition, 0.0, g))
clip         = primitive("clip", lambda a, *, low, high: namespace(a).clip(a, low, high), "a",
                         options={"low": None, "high": None},
                         a=lambda g, a, low, high: where(_inside(a, low, high), g, 0.0))
# fmt: on


@composed(np.clip)
def _clip_of_numpy(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: None = None,
    *,
    min: Any = None,  # noqa: A002  NumPy's name
    max: Any = None,  # noqa: A002
) -> Any:
    """Replaces `np.clip`; a bound that needs a gradient gets that of the items clipped to it."""
    if not (a_min is a_max is None or min is max is None):
        raise ValueError("clip takes min and max, or a_min and a_max, not some of both")
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if not any(isinstance(bound, Tensor) and bound.requires_grad for bound in (low, high)):
        low, high = array_of(low), array_of(high)
        return clip(as_tensor(a), low=low, high=high)
    above = a if low is None else np.maximum(a, low)
    return above if high is None else np.minimum(above, high)


@composed(np.where)
def _where_of_numpy(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Replaces `np.where`; with one argument it is `np.nonzero`."""
    if x is None and y is None:
        return np.nonzero(condition)
    return where(condition, x, y)


# -- functions with derivative zero that operators and methods use -------------------------------
#
# All others are in `telegrad.autograd.ops.ufuncs`.

constants(
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
    np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert,
    np.isnan, np.floor, np.argmax, np.argmin, np.any, np.all,
)  # fmt: skip
