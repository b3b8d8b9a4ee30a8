"""`np.i0`, the modified Bessel function of order 0, and its derivatives.

The k-th derivative is a mean over a circle, which as a sum over equal steps is exact to rounding
as soon as there are enough of them (M. Abramowitz and I. A. Stegun, "Handbook of mathematical
functions" (1964), 9.6.16):

    i0^(k)(x) = mean of exp(x cos(t)) cos(t)^k over t
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.extend import Operation, numpy_function, primitive
from telegrad.types import Array

__all__: list[str] = []

# Of 256 steps the first quarter; the sum is short by i256(x), which for x = 713, from where on i0
# is infinite, is 1e-20 of it. Four quarters have the same cosines but for the sign.
_COSINES: Final = np.cos((np.arange(64) + 0.5) * (np.pi / 128))


def _slope(x: Any, *, order: int = 1) -> Array:
    xp = namespace(x)
    exact = xp.asarray(x, dtype=np.result_type(x.dtype, np.float64))
    total = xp.zeros_like(exact)
    for cosine in _COSINES.tolist():
        up, down = xp.exp(exact * cosine), xp.exp(exact * -cosine)
        total += cosine**order * (up + down if order % 2 == 0 else up - down)
    slope: Array = (total / 128).astype(x.dtype)
    return slope


slope: Operation  # declared, as its rule names it

# fmt: off
slope = primitive("i0_slope", _slope, "x", options={"order": 1}, x=lambda g, x, order: g * slope(x, order=order + 1))
i0    = numpy_function(np.i0, "x", x=lambda g, x: g * slope(x, order=1))
# fmt: on
