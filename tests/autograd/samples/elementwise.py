"""Samples for elementwise functions of one argument."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, of_shape, unary

__all__ = ["ELEMENTWISE"]

_NEAR_ZERO: Final = Sample((np.array([0.0, 1e-5, -0.7, 1.0]),))

ELEMENTWISE: Final[Table] = {
    np.sign: unary(0.5, 2.0, complex_too=True),
    np.negative: unary(-1.0, 1.0, complex_too=True),
    np.positive: unary(-1.0, 1.0, complex_too=True),
    np.copy: unary(-1.0, 1.0, complex_too=True),
    np.absolute: [*unary(0.1, 1.0, complex_too=True), *unary(-1.0, -0.1)],
    np.fabs: [*unary(0.1, 1.0), *unary(-1.0, -0.1)],
    np.square: unary(-1.0, 1.0, complex_too=True),
    np.reciprocal: unary(0.5, 2.0, complex_too=True),
    np.sqrt: unary(0.5, 2.0, complex_too=True),
    np.cbrt: [*unary(0.5, 2.0), *unary(-2.0, -0.5)],
    np.exp: unary(-1.0, 1.0, complex_too=True),
    np.exp2: unary(-1.0, 1.0, complex_too=True),
    np.expm1: unary(-1.0, 1.0, complex_too=True),
    np.log: unary(0.5, 2.0, complex_too=True),
    np.log2: unary(0.5, 2.0, complex_too=True),
    np.log10: unary(0.5, 2.0, complex_too=True),
    np.log1p: unary(-0.5, 2.0, complex_too=True),
    np.sin: unary(-2.0, 2.0, complex_too=True),
    np.cos: unary(-2.0, 2.0, complex_too=True),
    np.tan: unary(-1.0, 1.0, complex_too=True),
    np.arcsin: unary(-0.8, 0.8, complex_too=True),
    np.arccos: unary(-0.8, 0.8, complex_too=True),
    np.arctan: unary(-2.0, 2.0, complex_too=True),
    np.sinh: unary(-2.0, 2.0, complex_too=True),
    np.cosh: unary(-2.0, 2.0, complex_too=True),
    np.tanh: unary(-2.0, 2.0, complex_too=True),
    np.arcsinh: unary(-2.0, 2.0, complex_too=True),
    np.arccosh: unary(1.2, 3.0, complex_too=True),
    np.arctanh: unary(-0.8, 0.8, complex_too=True),
    np.degrees: unary(-2.0, 2.0),
    np.rad2deg: unary(-2.0, 2.0),
    np.radians: unary(-2.0, 2.0),
    np.deg2rad: unary(-2.0, 2.0),
    np.sinc: [*unary(-2.1, 1.7, complex_too=True), _NEAR_ZERO],
    np.conjugate: unary(-1.0, 1.0, complex_too=True),
    np.real: unary(-1.0, 1.0, complex_too=True),
    np.imag: unary(-1.0, 1.0, complex_too=True),
    np.modf: [*unary(0.1, 0.9), *unary(-3.7, -3.2)],
    np.frexp: [*unary(0.6, 0.9), Sample((of_shape((3,), 4.2, 7.7),))],
}
