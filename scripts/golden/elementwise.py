"""How the arguments of elementwise functions are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden.builder import Builder, Value
from golden.domains import (
    GAP,
    Domain,
    Drawing,
    above_one,
    anything,
    bounded,
    broadcast,
    distinct,
    each,
    fraction,
    needs_complex,
    nonzero,
    positive,
    real,
    real_nonzero,
    right_half,
    within_one,
)

__all__ = ["ELEMENTWISE", "SPECIAL"]


def unary(domain: Domain, **options: Any) -> Drawing:
    return lambda b, name: b.emit(name, domain(b, b.last), **options)


def partner(b: Builder, x: Value, domain: Domain = real) -> Any:
    """What broadcasts with x: an earlier value, a constant array, a number."""
    shape = b.of(x).shape
    numbers = [k for k in range(x.number) if b.values[k].dtype.kind in "fc"]
    fitting = [k for k in numbers if broadcast(b.values[k].shape, shape)]
    if fitting and b.rng.random() < 0.6:
        return domain(b, Value(b.one_of(*fitting)))
    if b.rng.random() < 0.3:
        return float(b.constant(low=0.5))
    others = [shape, shape[1:], (*[1] * (len(shape) > 1), *shape[1:]), (2, *shape)]
    low = -2.0 if domain in (anything, real) else 0.5
    return b.constant(*b.one_of(*others), low=low)


def binary(first: Domain, second: Domain, *, apart: float = 0.0, whole: bool = False) -> Drawing:
    """`apart`: ties are kept away; `whole`: so are quotients that are whole numbers."""

    def draw(b: Builder, name: str) -> None:
        x = first(b, b.last)
        y = partner(b, x, second)
        u, v = b.of(x), b.of(y) if isinstance(y, Value) else y
        if apart:
            b.need(bool((np.abs(u - v) > apart).all()))
        if whole:
            quotient = u / v
            b.need(bool((np.abs(quotient - np.round(quotient)) > GAP).all()))
        swap = first is second and b.rng.random() < 0.4
        b.emit(name, *((y, x) if swap else (x, y)), **pick_of(name))

    return draw


def pick_of(name: str) -> dict[str, int]:
    return {"pick": 1} if name == "divmod" else {}


def stepwise(b: Builder, name: str) -> None:
    """What is flat between jumps, taken from what it was made of."""
    x = fraction(b, b.last)
    others = [0.5] if name == "heaviside" else []
    b.emit("subtract", x, b.emit(name, x, *others))


def signs(b: Builder, name: str) -> None:
    x = real_nonzero(b, b.last)
    b.emit("multiply", x, b.emit(name, x))


def raised(b: Builder, name: str) -> None:
    if b.rng.random() < 0.5:
        b.emit(name, bounded(b, b.last), b.one_of(2, 3, 2.0))
    else:
        binary(positive, real)(b, name)


def modulus(b: Builder, name: str) -> None:
    b.emit(name, nonzero(b, b.last))


def fractional_part(b: Builder, name: str) -> None:
    b.emit(name, fraction(b, b.last), pick=0)


def scaled(b: Builder, name: str) -> None:
    x = real(b, b.last)
    b.emit(name, x, b.rng.integers(-1, 2, b.of(x).shape))


def clipped(b: Builder, name: str) -> None:
    x = distinct(b, b.last)
    low, high = b.one_of((-0.75, 1.25), (None, 0.5), (0.25, None))
    a = b.of(x)
    b.need(all(bool((np.abs(a - c) > GAP).all()) for c in (low, high) if c is not None))
    b.emit(name, x, low, high)


def chosen(b: Builder, name: str) -> None:
    """where, select and choose between the last value and another one."""
    x = real(b, b.last)
    y = b.emit(b.one_of("sin", "negative", "tanh"), x) if b.rng.random() < 0.5 else None
    other = b.constant(*b.of(x).shape) if y is None else y
    mask = np.asarray(b.rng.random(b.of(x).shape) < 0.5)
    if name == "select":
        b.emit(name, [mask, np.asarray(b.rng.random(mask.shape) < 0.5)], [x, other], 0.5)
    elif name == "choose":
        b.emit(name, mask.astype(int), [x, other])
    elif b.rng.random() < 0.5:
        b.need(bool((np.abs(b.of(x) - 0.25) > GAP).all()))
        b.emit(name, b.emit("greater", x, 0.25), x, other)
    else:
        b.emit(name, mask, x, other)


# fmt: off
ELEMENTWISE: dict[str, Drawing] = {
    **each("sin cos tanh sinh cosh exp expm1", lambda b, name: b.emit(name, bounded(b, b.last))),
    **each("negative square", unary(anything)), "positive": unary(real), "conj": unary(anything),
    **each("arctan arcsinh sinc deg2rad rad2deg", unary(real)), "i0": unary(lambda b, x: bounded(b, real(b, x))), "exp2": unary(lambda b, x: bounded(b, real(b, x))),
    **each("arcsin arccos arctanh tan log1p", unary(within_one)), "arccosh": unary(above_one),
    **each("sqrt log", unary(right_half)), **each("log2 log10", unary(positive)), "reciprocal": unary(nonzero),
    "absolute": modulus, "abs": modulus, "sign": signs, "angle": lambda b, name: b.emit(name, right_half(b, needs_complex(b))),
    "real": lambda b, name: b.emit(name, needs_complex(b)), "imag": lambda b, name: b.emit(name, needs_complex(b)),
    **each("floor ceil trunc rint heaviside", stepwise), "modf": fractional_part, "ldexp": scaled, "clip": clipped,
    **each("add subtract multiply", binary(anything, anything)), "divide": binary(anything, nonzero), "true_divide": binary(real, real_nonzero),
    **each("maximum minimum fmax fmin", binary(real, real, apart=GAP)), "hypot": binary(real_nonzero, real), "arctan2": binary(positive, real),
    **each("logaddexp logaddexp2", binary(real, real)), "copysign": binary(real_nonzero, real_nonzero),
    **each("remainder fmod mod divmod", binary(fraction, real_nonzero, whole=True)), "power": raised, "float_power": binary(positive, real),
    **each("where select choose", chosen),
    "cbrt": unary(positive), "fabs": unary(real_nonzero), **each("degrees radians", unary(real)),
}
SPECIAL: dict[str, Drawing] = {
    **each("special.erf special.erfc special.expit special.i0 special.i0e special.i1 special.i1e special.exp2 special.expm1 special.ndtr special.log_ndtr special.erfcx", unary(lambda b, x: bounded(b, real(b, x)))),
    **each("special.erfinv special.log1p", unary(within_one)), **each("special.logit special.ndtri", unary(lambda b, x: b.emit("add", b.emit("divide", within_one(b, x), 2.0), 0.5))),
    **each("special.gammaln special.entr", unary(positive)), "special.sinc": unary(real),
    "special.xlogy": binary(positive, positive), "special.xlog1py": binary(positive, within_one),
}
# fmt: on
