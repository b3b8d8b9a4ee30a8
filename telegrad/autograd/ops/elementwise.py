"""Elementwise functions of one argument, each with its gradient rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.dispatch import TABLE
from telegrad.autograd.operation import Operation
from telegrad.types import Array

__all__ = [
    "absolute",
    "copy",
    "cos",
    "exp",
    "expm1",
    "log",
    "log1p",
    "negative",
    "positive",
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
    result: Array = namespace(a).maximum(a, 0)
    return result


cos: Operation  # declared before its rule and that of sin name each other

# fmt: off
sign     = Operation("sign",     np.sign,     "a", a=lambda g: g * 0)
negative = Operation("negative", np.negative, "a", a=lambda g: -g)
positive = Operation("positive", np.positive, "a", a=lambda g: g)
copy     = Operation("copy",     np.copy,     "a", a=lambda g: g)
absolute = Operation("absolute", np.absolute, "a", a=lambda g, a: g * sign(a))
square   = Operation("square",   np.square,   "a", a=lambda g, a: g * (2 * a))
sqrt     = Operation("sqrt",     np.sqrt,     "a", a=lambda g, y: g * 0.5 / y)
exp      = Operation("exp",      np.exp,      "a", a=lambda g, y: g * y)
expm1    = Operation("expm1",    np.expm1,    "a", a=lambda g, y: g * (y + 1))
log      = Operation("log",      np.log,      "a", a=lambda g, a: g / a)
log1p    = Operation("log1p",    np.log1p,    "a", a=lambda g, a: g / (a + 1))
sin      = Operation("sin",      np.sin,      "a", a=lambda g, a: g * cos(a))
cos      = Operation("cos",      np.cos,      "a", a=lambda g, a: -g * sin(a))
tanh     = Operation("tanh",     np.tanh,     "a", a=lambda g, y: g * (1 - y * y))
sigmoid  = Operation("sigmoid",  _sigmoid,    "a", a=lambda g, y: g * y * (1 - y))
relu     = Operation("relu",     _relu,       "a", a=lambda g, y: g * (y > 0))
# fmt: on

for _function, _operation in (
    (np.sign, sign),
    (np.negative, negative),
    (np.positive, positive),
    (np.copy, copy),
    (np.absolute, absolute),
    (np.square, square),
    (np.sqrt, sqrt),
    (np.exp, exp),
    (np.expm1, expm1),
    (np.log, log),
    (np.log1p, log1p),
    (np.sin, sin),
    (np.cos, cos),
    (np.tanh, tanh),
):
    TABLE.register(_function)(_operation)
