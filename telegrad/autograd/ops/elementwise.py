"""Elementwise functions of one argument that operators, modules and rules use, with their rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.extend import Operation, numpy_function, primitive
from telegrad.types import Array

__all__ = [
    "absolute",
    "conjugate",
    "copy",
    "cos",
    "exp",
    "expm1",
    "log",
    "log1p",
    "negative",
    "positive",
    "real",
    "relu",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "square",
    "tanh",
]


def _sigmoid(a: Any) -> Array:
    # exp of a negative number only: never overflows.
    xp = namespace(a)
    small = xp.exp(-xp.abs(a))
    result: Array = xp.where(a >= 0, 1 / (1 + small), small / (1 + small))
    return result


def _relu(a: Any) -> Array:
    result: Array = np.maximum(a, 0)
    return result


def _sign(x: Any) -> Array:
    # CuPy's own, of a complex number, is that of its real part.
    xp = namespace(x)
    size = xp.abs(x)
    found: Array = xp.sign(x) if x.dtype.kind != "c" else x / xp.where(size == 0, 1, size)
    return found


def _of_sign(g: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind != "c":
        return g * 0
    # z / |z| only turns: of a change of z counts what stands across it. At 0 this gives 0.
    across = conjugate(y) * g
    return y * (across - conjugate(across)) / np.where(x == 0, 1.0, 2 * absolute(x))


cos: Operation  # declared before its rule and that of sin name each other
conjugate: Operation
_H: Final = "holomorphic"

# fmt: off
sign       = numpy_function(np.sign,       "x", complex_rule="own", kernels={"cupy": _sign}, x=_of_sign)
negative   = numpy_function(np.negative,   "x", complex_rule=_H, x=lambda g: -g)
positive   = numpy_function(np.positive,   "x", complex_rule=_H, x=lambda g: g)
copy       = numpy_function(np.copy,       "a", complex_rule=_H, options={"order": "K", "subok": False}, a=lambda g: g)
absolute   = numpy_function(np.absolute,   "x", complex_rule="own", x=lambda g, x: g * sign(x))
square     = numpy_function(np.square,     "x", complex_rule=_H, x=lambda g, x: g * (2 * x))
sqrt       = numpy_function(np.sqrt,       "x", complex_rule=_H, x=lambda g, y: g * 0.5 / y)
exp        = numpy_function(np.exp,        "x", complex_rule=_H, x=lambda g, y: g * y)
expm1      = numpy_function(np.expm1,      "x", complex_rule=_H, x=lambda g, y: g * (y + 1))
log        = numpy_function(np.log,        "x", complex_rule=_H, x=lambda g, x: g / x)
log1p      = numpy_function(np.log1p,      "x", complex_rule=_H, x=lambda g, x: g / (x + 1))
sin        = numpy_function(np.sin,        "x", complex_rule=_H, x=lambda g, x: g * cos(x))
cos        = numpy_function(np.cos,        "x", complex_rule=_H, x=lambda g, x: -g * sin(x))
tanh       = numpy_function(np.tanh,       "x", complex_rule=_H, x=lambda g, y: g * (1 - y * y))
conjugate  = numpy_function(np.conjugate,  "x", complex_rule="own", x=lambda g: conjugate(g))
real       = numpy_function(np.real,       "val", view=True, complex_rule="own", val=lambda g: g)
sigmoid    = primitive("sigmoid", _sigmoid, "a", a=lambda g, y: g * y * (1 - y))
relu       = primitive("relu",    _relu,    "a", a=lambda g, y: g * (y > 0))
# fmt: on
