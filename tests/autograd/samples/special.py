"""Samples for SciPy's special functions that come to telegrad by NumPy's protocol of ufuncs."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import special

from tests.autograd.samples.sample import (
    Sample,
    Table,
    binary,
    complex_numbers,
    of_shape,
    unary,
)

__all__ = ["SPECIAL", "WITHOUT_PROTOCOL"]

WITHOUT_PROTOCOL: Final = {
    special.log_softmax,
    special.logsumexp,
    special.polygamma,
    special.softmax,
}
"""No ufuncs, so `scipy.special.f(tensor)` never gets here; tests/scipy/test_special.py has them."""


def _at(*numbers: float) -> list[Sample]:
    return [Sample((np.array(numbers),))]


def _with_fixed_first() -> list[Sample]:
    first, second = of_shape((2, 1), 0.5, 2.0), of_shape((3,), 0.6, 2.3, seed=1)
    return [Sample((first, second), fixed=(0,)), Sample((1.5, second))]


SPECIAL: Final[Table] = {
    special.erf: [*unary(-1.5, 1.5, complex_too=True), *_at(0.0, -3.0, 3.0)],
    special.erfc: unary(-1.5, 1.5, complex_too=True),
    special.erfcx: unary(-1.0, 1.5, complex_too=True),
    special.erfinv: unary(-0.8, 0.8),
    special.erfcinv: unary(0.3, 1.7),
    special.dawsn: unary(-1.5, 1.5, complex_too=True),
    special.ndtr: unary(-1.5, 1.5, complex_too=True),
    special.log_ndtr: [*unary(-1.5, 1.5), *_at(-30.0, -8.0, 4.0)],
    special.ndtri: unary(0.2, 0.8),
    special.expit: [*unary(-2.0, 2.0), *_at(-30.0, 0.0, 30.0)],
    special.logit: unary(0.2, 0.8),
    special.log_expit: [*unary(-2.0, 2.0), *_at(-30.0, 0.0, 30.0)],
    special.log1p: unary(-0.5, 2.0, complex_too=True),
    special.expm1: unary(-1.0, 1.0, complex_too=True),
    special.exp2: unary(-1.0, 1.0),
    special.exp10: unary(-1.0, 1.0),
    special.cbrt: [*unary(0.5, 2.0), *unary(-2.0, -0.5)],
    special.expi: [*unary(0.5, 2.0), Sample((complex_numbers((2,)),))],
    special.exp1: [*unary(0.5, 2.0), Sample((complex_numbers((2,)),))],
    special.gammaln: [*unary(0.5, 3.0), *unary(-2.8, -2.2)],
    # The second derivative of complex numbers would need the trigamma function of them.
    special.loggamma: [*unary(0.5, 3.0), Sample((complex_numbers((2,)),), second=False)],
    special.gamma: [
        *unary(0.5, 3.0),
        *unary(-1.8, -1.2),
        Sample((complex_numbers((2,)),), second=False),
    ],
    special.digamma: unary(0.5, 3.0),
    special.beta: binary(),
    special.betaln: binary(),
    special.gammainc: _with_fixed_first(),
    special.gammaincc: _with_fixed_first(),
    special.xlogy: [*binary(complex_too=True), Sample((np.zeros(2), of_shape((2,))))],
    special.xlog1py: [*binary(complex_too=True), Sample((np.zeros(2), of_shape((2,))))],
    special.entr: unary(0.2, 2.0),
    special.rel_entr: binary(),
    special.kl_div: binary(),
    special.i0: [*unary(-2.0, 2.0), *_at(0.0)],
    special.i1: [*unary(-2.0, 2.0), *_at(0.0)],
    special.i0e: [*unary(0.2, 2.0), *unary(-2.0, -0.2)],
    special.i1e: [*unary(0.2, 2.0), *unary(-2.0, -0.2)],
    special.k0: unary(0.5, 2.0),
    special.k1: unary(0.5, 2.0),
    special.k0e: unary(0.5, 2.0),
    special.k1e: unary(0.5, 2.0),
    special.j0: [*unary(-2.0, 2.0), *_at(0.0)],
    special.j1: [*unary(-2.0, 2.0), *_at(0.0)],
    special.y0: unary(0.5, 2.0),
    special.y1: unary(0.5, 2.0),
}
