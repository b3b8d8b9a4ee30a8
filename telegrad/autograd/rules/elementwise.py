"""Elementwise functions of one argument, each with its gradient rule."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import Operation, numpy_function
from telegrad.autograd.ops import sign, sqrt

__all__: list[str] = []

_LN2: Final = float(np.log(2.0))
_LN10: Final = float(np.log(10.0))
_RADIAN: Final = 180.0 / float(np.pi)
_H: Final = "holomorphic"


def _sinc_slope(x: Any) -> Any:
    # (cos(pi x) - sinc(x)) / x; near 0, where little of that difference is left, its series.
    size = abs(x)
    near = size < float(np.spacing(size.dtype.type(1))) ** (1 / 6)
    away = np.where(near, 1.0, x)
    series = x * (x * x * (np.pi**4 / 30) - np.pi**2 / 3)
    return np.where(near, series, (np.cos(np.pi * away) - np.sinc(away)) / away)


cosh: Operation  # declared before the rule of sinh names it

# fmt: off
fabs       = numpy_function(np.fabs,       "x", x=lambda g, x: g * sign(x))
reciprocal = numpy_function(np.reciprocal, "x", complex_rule=_H, x=lambda g, y: -g * y * y)
cbrt       = numpy_function(np.cbrt,       "x", x=lambda g, y: g / (3 * y * y))
exp2       = numpy_function(np.exp2,       "x", complex_rule=_H, x=lambda g, y: g * (_LN2 * y))
log2       = numpy_function(np.log2,       "x", complex_rule=_H, x=lambda g, x: g / (_LN2 * x))
log10      = numpy_function(np.log10,      "x", complex_rule=_H, x=lambda g, x: g / (_LN10 * x))
tan        = numpy_function(np.tan,        "x", complex_rule=_H, x=lambda g, y: g * (1 + y * y))
arcsin     = numpy_function(np.arcsin,     "x", complex_rule=_H, x=lambda g, x: g / sqrt(1 - x * x))
arccos     = numpy_function(np.arccos,     "x", complex_rule=_H, x=lambda g, x: -g / sqrt(1 - x * x))
arctan     = numpy_function(np.arctan,     "x", complex_rule=_H, x=lambda g, x: g / (1 + x * x))
sinh       = numpy_function(np.sinh,       "x", complex_rule=_H, x=lambda g, x: g * cosh(x))
cosh       = numpy_function(np.cosh,       "x", complex_rule=_H, x=lambda g, x: g * sinh(x))
arcsinh    = numpy_function(np.arcsinh,    "x", complex_rule=_H, x=lambda g, x: g / sqrt(x * x + 1))
arccosh    = numpy_function(np.arccosh,    "x", complex_rule=_H, x=lambda g, x: g / (sqrt(x - 1) * sqrt(x + 1)))
arctanh    = numpy_function(np.arctanh,    "x", complex_rule=_H, x=lambda g, x: g / (1 - x * x))
degrees    = numpy_function(np.degrees,    "x", x=lambda g: g * _RADIAN)
rad2deg    = numpy_function(np.rad2deg,    "x", x=lambda g: g * _RADIAN)
radians    = numpy_function(np.radians,    "x", x=lambda g: g / _RADIAN)
deg2rad    = numpy_function(np.deg2rad,    "x", x=lambda g: g / _RADIAN)
sinc       = numpy_function(np.sinc,       "x", complex_rule=_H, x=lambda g, x: g * _sinc_slope(x))
imag       = numpy_function(np.imag,       "val", view=True, complex_rule="own", val=lambda g, val: g * (1j if val.dtype.kind == "c" else 0.0))
# fmt: on
