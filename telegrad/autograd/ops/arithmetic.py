"""Elementwise functions of several arguments, which broadcast, each with its gradient rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import is_array, namespace
from telegrad.autograd.dispatch import TABLE
from telegrad.autograd.operation import Operation
from telegrad.autograd.ops.elementwise import log
from telegrad.types import Array

__all__ = [
    "add",
    "clip",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "power",
    "subtract",
    "where",
]


def _where(condition: Any, a: Any, b: Any) -> Array:
    xp = namespace(condition, a, b)
    chosen: Array = xp.where(condition if is_array(condition) else xp.asarray(condition), a, b)
    return chosen


def _clip(a: Any, *, low: Any, high: Any) -> Array:
    clipped: Array = namespace(a).clip(a, low, high)
    return clipped


def _inside(a: Any, low: Any, high: Any) -> Any:
    above = True if low is None else a >= low
    below = True if high is None else a <= high
    return (a == a) & above & below


def _base_slope(a: Any, b: Any) -> Any:
    # b * a ** (b - 1), and 0 rather than 0 * inf where b is 0.
    b = b.item() if isinstance(b, np.generic) else b
    if isinstance(b, (int, float)):
        return b * a ** (b - 1) if b != 0 else a * 0
    return b * a ** where(b == 0, 1.0, b - 1)


def _exponent_slope(y: Any, a: Any) -> Any:
    # y * log(a), and 0 where a is not positive: the power is then defined at single b only.
    return y * log(where(a > 0, a, 1.0))


def _share(g: Any, a: Any, b: Any) -> Any:
    # All of g where a wins, half of it where both are equal.
    return where(a > b, g, where(a == b, g * 0.5, 0.0))


where: Operation  # declared, as rules name what stands below

# fmt: off
add      = Operation("add",      np.add,      "a b", a=lambda g: g,        b=lambda g: g)
subtract = Operation("subtract", np.subtract, "a b", a=lambda g: g,        b=lambda g: -g)
multiply = Operation("multiply", np.multiply, "a b", a=lambda g, b: g * b, b=lambda g, a: g * a)
divide   = Operation("divide",   np.divide,   "a b", a=lambda g, b: g / b, b=lambda g, y, b: -g * y / b)
power    = Operation("power",    np.power,    "a b", a=lambda g, a, b: g * _base_slope(a, b),
                                                     b=lambda g, y, a: g * _exponent_slope(y, a))
maximum  = Operation("maximum",  np.maximum,  "a b", a=lambda g, a, b: _share(g, a, b), b=lambda g, a, b: _share(g, b, a))
minimum  = Operation("minimum",  np.minimum,  "a b", a=lambda g, a, b: _share(g, b, a), b=lambda g, a, b: _share(g, a, b))
where    = Operation("where",    _where,      "condition a b", a=lambda g, condition: where(condition, g, 0.0),
                                                               b=lambda g, condition: where(condition, 0.0, g))
clip     = Operation("clip",     _clip,       "a", keywords={"low": None, "high": None},
                                                   a=lambda g, a, low, high: where(_inside(a, low, high), g, 0.0))
# fmt: on

for _function, _operation in (
    (np.add, add),
    (np.subtract, subtract),
    (np.multiply, multiply),
    (np.divide, divide),
    (np.power, power),
    (np.maximum, maximum),
    (np.minimum, minimum),
):
    TABLE.register(_function)(_operation)
