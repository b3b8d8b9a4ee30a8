"""Where a function may be called: values brought there by a step or two, and axes to choose from.

Kinks, ties, poles and branch cuts are kept at a distance, for the sake of numbers that libraries
agree in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from golden.builder import Builder, UnfitError, Value

Drawing = Callable[[Builder, str], Any]
Domain = Callable[[Builder, Value], Value]
GAP = 1e-2


def each(names: str, drawing: Drawing) -> dict[str, Drawing]:
    """Returns a table with one drawing for all these names."""
    return dict.fromkeys(names.split(), drawing)


def is_complex(b: Builder, x: Value) -> bool:
    return bool(b.of(x).dtype.kind == "c")


def is_real(b: Builder, x: Value) -> bool:
    return bool(b.of(x).dtype.kind == "f")


def anything(b: Builder, x: Value) -> Value:
    return x


def real(b: Builder, x: Value) -> Value:
    return x if is_real(b, x) else b.emit(b.one_of("real", "imag"), x)


def bounded(b: Builder, x: Value) -> Value:
    return x if np.abs(b.of(x)).max() < 3 else b.emit("divide", x, float(2 ** b.one_of(4, 5)))


def positive(b: Builder, x: Value) -> Value:
    x = real(b, x)
    return x if b.of(x).min() > 0.1 else b.emit("add", b.emit("square", x), 0.5)


def above_one(b: Builder, x: Value) -> Value:
    return b.emit("add", positive(b, x), 1.25)


def within_one(b: Builder, x: Value) -> Value:
    x = real(b, x)
    return x if np.abs(b.of(x)).max() < 0.9 else b.emit("multiply", b.emit("tanh", x), 0.875)


def nonzero(b: Builder, x: Value) -> Value:
    if np.abs(b.of(x)).min() > 0.1:
        return x
    if is_complex(b, x):
        return b.emit("add", x, 2.5)
    return b.emit("add", b.emit("square", x), 0.5)


def real_nonzero(b: Builder, x: Value) -> Value:
    return nonzero(b, real(b, x))


def right_half(b: Builder, x: Value) -> Value:
    """Away from the cut along the negative numbers."""
    if not is_complex(b, x):
        return positive(b, x)
    z = b.of(x)
    return x if ((z.real > 0.1) | (np.abs(z.imag) > 0.2)).all() else b.emit("add", x, 30.0)


def fraction(b: Builder, x: Value) -> Value:
    """Away from whole numbers and halves."""
    x = real(b, x)
    a = 2 * b.of(x)
    b.need(bool((np.abs(a - np.round(a)) > GAP).all()))
    return x


def distinct(b: Builder, x: Value) -> Value:
    x = real(b, x)
    gaps = np.diff(np.sort(b.of(x), axis=None))
    b.need(bool((gaps > GAP).all()))
    return x


def needs_complex(b: Builder) -> Value:
    if not is_complex(b, b.last):
        raise UnfitError
    return b.last


# -- shapes and axes --


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def axis_of(b: Builder, x: Value) -> int:
    b.need(b.of(x).ndim > 0)
    return int(b.rng.integers(-b.of(x).ndim, b.of(x).ndim))


def long_axis(b: Builder, x: Value, least: int) -> int:
    axes = [k for k, length in enumerate(b.of(x).shape) if length >= least]
    b.need(bool(axes))
    return int(b.one_of(*axes))


def vector(b: Builder, x: Value, least: int = 2) -> Value:
    x = real(b, x)
    x = x if b.of(x).ndim == 1 else b.emit("ravel", x)
    b.need(least <= b.of(x).shape[0] <= 6)
    return x
