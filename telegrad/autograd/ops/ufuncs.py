"""Further elementwise functions of NumPy, `i0`, and choices between arrays, with gradient rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.extend import Operation, composed, constants, numpy_function, primitive
from telegrad.autograd.ops.elementwise import base_slope, exponent_slope, sigmoid, sign, sqrt, where
from telegrad.autograd.ops.joining import alike
from telegrad.autograd.ops.selection import in_range, plain, take_along_axis
from telegrad.autograd.ops.shape import broadcast_to, getitem, put, stack
from telegrad.autograd.tensor.creation import as_tensor
from telegrad.types import Array

_LN2: Final = float(np.log(2.0))
_LN10: Final = float(np.log(10.0))
_RADIAN: Final = 180.0 / float(np.pi)
_H: Final = "holomorphic"


def _sinc_slope(x: Any) -> Any:
    # (cos(pi x) - sinc(x)) / x; near 0, where the difference cancels, its series.
    size = abs(x)
    near = size < float(np.spacing(size.dtype.type(1))) ** (1 / 6)
    away, small = np.where(near, 1.0, x), np.where(near, x, 0.0)
    series = small * (small * small * (np.pi**4 / 30) - np.pi**2 / 3)
    return np.where(near, series, (np.cos(np.pi * away) - np.sinc(away)) / away)


def _root(x: Any) -> Any:
    """Returns sqrt(x^2 + 1); of real numbers without the square, which overflows."""
    return sqrt(x * x + 1) if x.dtype.kind == "c" else np.hypot(x, 1.0)


# fmt: off
fabs       = numpy_function(np.fabs,       "x", x=lambda g, x: g * sign(x))
reciprocal = numpy_function(np.reciprocal, "x", complex_rule=_H, x=lambda g, y: -g * y * y)
cbrt       = numpy_function(np.cbrt,       "x", x=lambda g, y: g / (3 * y * y))
exp2       = numpy_function(np.exp2,       "x", complex_rule=_H, x=lambda g, y: g * (_LN2 * y))
log2       = numpy_function(np.log2,       "x", complex_rule=_H, x=lambda g, x: g / (_LN2 * x))
log10      = numpy_function(np.log10,      "x", complex_rule=_H, x=lambda g, x: g / (_LN10 * x))
tan        = numpy_function(np.tan,        "x", complex_rule=_H, x=lambda g, y: g * (1 + y * y))
arcsin     = numpy_function(np.arcsin,     "x", complex_rule=_H, x=lambda g, x: g / sqrt(1 - x * x))
arccos     = numpy_function(np.arccos, "x", complex_rule=_H,
                            x=lambda g, x: -g / sqrt(1 - x * x))
arctan     = numpy_function(np.arctan,     "x", complex_rule=_H, x=lambda g, x: g / (1 + x * x))
sinh       = numpy_function(np.sinh,       "x", complex_rule=_H, x=lambda g, x: g * cosh(x))
cosh: Operation = numpy_function(np.cosh, "x", complex_rule=_H, x=lambda g, x: g * sinh(x))
arcsinh    = numpy_function(np.arcsinh,    "x", complex_rule=_H, x=lambda g, x: g / _root(x))
arccosh    = numpy_function(np.arccosh, "x", complex_rule=_H,
                            x=lambda g, x: g / (sqrt(x - 1) * sqrt(x + 1)))
arctanh    = numpy_function(np.arctanh,    "x", complex_rule=_H, x=lambda g, x: g / (1 - x * x))
degrees    = numpy_function(np.degrees,    "x", x=lambda g: g * _RADIAN)
rad2deg    = numpy_function(np.rad2deg,    "x", x=lambda g: g * _RADIAN)
radians    = numpy_function(np.radians,    "x", x=lambda g: g / _RADIAN)
deg2rad    = numpy_function(np.deg2rad,    "x", x=lambda g: g / _RADIAN)
sinc       = numpy_function(np.sinc,       "x", complex_rule=_H, x=lambda g, x: g * _sinc_slope(x))
imag       = numpy_function(np.imag, "val", view=True, complex_rule="own",
                            val=lambda g, val: g * (1j if val.dtype.kind == "c" else 0.0))
# fmt: on


# -- elementwise functions of several arguments, which broadcast ---------------------------------


def _present(g: Any, a: Any, b: Any, wins: Any) -> Any:
    # Like _share, but NaN loses against a number.
    return where(b != b, g, where(wins, g, where(a == b, g * 0.5, 0.0)))


def _over(x: Any, length: Any) -> Any:
    """Returns `x / length`, 0 at length 0."""
    return x / where(length == 0, 1.0, length)


def _turned(x: Any, x1: Any, x2: Any) -> Any:
    # x / (x1^2 + x2^2) without the squares, which overflow or vanish earlier than the lengths do.
    length = np.hypot(x1, x2)
    return _over(_over(x, length), length)


def _lead(x: Any, other: Any, y: Any) -> Any:
    """Returns `x - other`, but x (-inf) where both are -inf, so that neither gets a gradient.

    The sigmoid of it is the share of exp(x) in the sum of both: exact where y is x but for rounding
    or infinite. Of two infinities each has half, as of any two equal numbers.
    """
    equal = (y == np.inf) & (x == other)
    return where(equal, 0.0, x) - where(equal | (y == -np.inf), 0.0, other)


# fmt: off
float_power  = numpy_function(np.float_power, "x1 x2", complex_rule=_H,
                              x1=lambda g, x1, x2: g * base_slope(x1, x2),
                              x2=lambda g, y, x1: g * exponent_slope(y, x1))
remainder    = numpy_function(np.remainder, "x1 x2",
                              x1=lambda g: g,
                              x2=lambda g, x1, x2: -g * np.floor_divide(x1, x2))
fmod         = numpy_function(np.fmod, "x1 x2",
                              x1=lambda g: g,
                              x2=lambda g, x1, x2: -g * np.trunc(x1 / x2))
fmax         = numpy_function(np.fmax, "x1 x2",
                              x1=lambda g, x1, x2: _present(g, x1, x2, x1 > x2),
                              x2=lambda g, x1, x2: _present(g, x2, x1, x2 > x1))
fmin         = numpy_function(np.fmin, "x1 x2",
                              x1=lambda g, x1, x2: _present(g, x1, x2, x1 < x2),
                              x2=lambda g, x1, x2: _present(g, x2, x1, x2 < x1))
hypot        = numpy_function(np.hypot, "x1 x2",
                              x1=lambda g, y, x1: g * _over(x1, y),
                              x2=lambda g, y, x2: g * _over(x2, y))
arctan2      = numpy_function(np.arctan2, "x1 x2",
                              x1=lambda g, x1, x2: g * _turned(x2, x1, x2),
                              x2=lambda g, x1, x2: -g * _turned(x1, x1, x2))
logaddexp    = numpy_function(np.logaddexp, "x1 x2",
                              x1=lambda g, y, x1, x2: g * sigmoid(_lead(x1, x2, y)),
                              x2=lambda g, y, x1, x2: g * sigmoid(_lead(x2, x1, y)))
logaddexp2   = numpy_function(np.logaddexp2, "x1 x2",
                              x1=lambda g, y, x1, x2: g * sigmoid(_LN2 * _lead(x1, x2, y)),
                              x2=lambda g, y, x1, x2: g * sigmoid(_LN2 * _lead(x2, x1, y)))
copysign     = numpy_function(np.copysign, "x1 x2",
                              x1=lambda g, y, x1: g * (np.sign(y) * np.sign(x1)),
                              x2=lambda g: np.zeros_like(g))
heaviside    = numpy_function(np.heaviside, "x1 x2",
                              x1=lambda g: np.zeros_like(g),
                              x2=lambda g, x1: where(x1 == 0, g, 0.0))
ldexp        = numpy_function(np.ldexp,        "x1 x2", x1=lambda g, x2: np.ldexp(g, x2))
modf         = numpy_function(np.modf,         "x", outputs="fraction whole", x=lambda g: g[0])
frexp        = numpy_function(
    np.frexp, "x", outputs="mantissa exponent",
    x=lambda g, exponent: None if g[0] is None else np.ldexp(g[0], -exponent))
divmod_      = numpy_function(np.divmod, "x1 x2", outputs="quotient remainder",
                              x1=lambda g: g[1],
                              x2=lambda g, quotient: None if g[1] is None else -g[1] * quotient)
# fmt: on


# -- functions of complex numbers that are not ufuncs ---------------------------------------------


def _of_angle(g: Any, z: Any, deg: bool) -> Any:
    # The angle grows across z, more slowly farther out. It jumps at 0, where the gradient is 0.
    if z.dtype.kind != "c":
        return np.zeros_like(g)
    across = where(z == 0, 0.0, 1j / np.conjugate(where(z == 0, 1.0, z)))
    return g * across * (180.0 / np.pi) if deg else g * across


# fmt: off
angle = numpy_function(np.angle, "z", options={"deg": False}, complex_rule="own", z=_of_angle)
# fmt: on


# fmt: off
composed(np.real_if_close)(lambda a, tol=100:
    np.real(a) if np.real_if_close(a.data, tol).dtype.kind != "c" else a)
# fmt: on


# -- functions of NumPy whose derivative is zero wherever it exists, never recorded ---------------

constants(
    np.logical_and, np.logical_or, np.logical_xor, np.logical_not,
    np.bitwise_count,
    np.left_shift, np.right_shift, np.gcd, np.lcm,
    np.isinf, np.isfinite, np.isnat, np.isposinf, np.isneginf, np.signbit,
    np.iscomplex, np.isreal, np.iscomplexobj, np.isrealobj,
    np.ceil, np.rint, np.trunc, np.fix, np.round, np.around, np.floor_divide,
    np.spacing,
    np.isclose, np.allclose, np.array_equal, np.array_equiv,
    np.nanargmax, np.nanargmin, np.argsort, np.argpartition, np.argwhere,
    np.lexsort, np.searchsorted, np.digitize, np.isin,
    np.count_nonzero, np.nonzero, np.flatnonzero,
    np.shape, np.ndim, np.size,
    np.zeros_like, np.ones_like, np.empty_like,
    np.array2string, np.array_repr, np.array_str,
    np.result_type, np.can_cast, np.min_scalar_type, np.common_type,
    np.may_share_memory, np.shares_memory,
)  # fmt: skip


# -- `np.i0`, the modified Bessel function of order 0, and its derivatives -----------------------
#
# The k-th derivative is a mean over a circle (M. Abramowitz and I. A. Stegun, "Handbook of
# mathematical functions" (1964), 9.6.16):
#
#     i0^(k)(x) = mean of exp(x cos(t)) cos(t)^k over t
#
# As a sum over enough equal steps, the mean is exact to rounding.

# The first quarter of 256 steps. The error of the sum is i256(x); at x = 713, from where on i0 is
# infinite, this is 1e-20 of i0. The other quarters have the same cosines up to the sign.
_COSINES: Final = np.cos((np.arange(64) + 0.5) * (np.pi / 128))


def _slope(x: Any, *, order: int = 1) -> Array:
    xp = namespace(x)
    exact = xp.asarray(x, dtype=np.result_type(x.dtype, np.float64))
    total = xp.zeros_like(exact)
    for cosine in _COSINES.tolist():
        pair = xp.cosh if order % 2 == 0 else xp.sinh  # exp(x cos(t)) from both halves
        total += 2 * cosine**order * pair(exact * cosine)
    slope: Array = (total / 128).astype(x.dtype)
    return slope


# fmt: off
slope: Operation = primitive("i0_slope", _slope, "x", options={"order": 1},
                             x=lambda g, x, order: g * slope(x, order=order + 1))
i0    = numpy_function(np.i0, "x", x=lambda g, x: g * slope(x, order=1))
# fmt: on


# -- choices of each item from one of several arrays ----------------------------------------------


@composed(np.choose)
def _choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    first, *parts = alike((a, *choices))
    count = len(parts)
    numbers = in_range(first.data, count, mode)
    if ((numbers < 0) | (numbers >= count)).any():
        raise ValueError(f"choose needs numbers from 0 to {count - 1}")
    shape = np.broadcast_shapes(numbers.shape, *[x.shape for x in parts])
    pile = stack(*[broadcast_to(x, to=shape) for x in parts], axis=0)
    places = broadcast_to(numbers, to=shape)[None].astype(np.intp)
    return getitem(take_along_axis(pile, places, axis=0), index=0)


@composed(np.select)
def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueError(
            f"select needs as many choices as conditions, and one at least: {len(choicelist)} and "
            f"{len(condlist)} were given"
        )
    result = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        if plain(condition, choice).dtype != np.bool_:
            raise TypeError("conditions of select must have dtype bool")
        result = where(condition, choice, result)
    return as_tensor(result)


def _several(conditions: Any, ndim: int) -> bool:
    """Returns True if `conditions` are several conditions or one, by NumPy's rule."""
    if isinstance(conditions, (list, tuple)):
        return np.ndim(conditions[0]) > 0 or ndim == 0
    return np.ndim(conditions) > (1 if ndim else 0)


@composed(np.piecewise)
def _piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    x = as_tensor(x)
    several = _several(condlist, x.ndim)
    conditions = [plain(c, x).astype(np.bool_) for c in (condlist if several else [condlist])]
    if len(funclist) == len(conditions) + 1:
        given = conditions[0]
        for condition in conditions[1:]:
            given = given | condition
        conditions.append(~given)
    if len(funclist) != len(conditions):
        raise ValueError(
            f"piecewise needs as many functions as conditions, or one more: {len(funclist)} and "
            f"{len(conditions)} were given"
        )
    result: Any = namespace(x.data).zeros_like(x.data)
    for condition, function in zip(conditions, funclist, strict=True):
        value = function
        if callable(function):
            part = getitem(x, index=condition)
            if not part.size:
                continue
            value = function(part, *args, **kw)
        result = put(result, value, index=condition)
    return as_tensor(result)


def _finite(g: Any, x: Any) -> Any:
    if x.dtype.kind != "c":
        return where(np.isfinite(x), g, 0.0)
    real = where(np.isfinite(np.real(x)), np.real(g), 0.0)
    return real + 1j * where(np.isfinite(np.imag(x)), np.imag(g), 0.0)


# fmt: off
nan_to_num = numpy_function(np.nan_to_num, "x",
                            options={"nan": 0.0, "posinf": None, "neginf": None},
                            complex_rule="own", x=_finite)
# fmt: on
