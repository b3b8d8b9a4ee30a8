"""Samples for functions about complex numbers."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape, unary

__all__ = ["COMPLEX_NUMBERS"]

_Z: Final = complex_numbers((2, 3))

COMPLEX_NUMBERS: Final[Table] = {
    np.angle: [
        *unary(-2.0, -0.5), *unary(0.5, 2.0, complex_too=True), Sample((-_Z.T, True)),
        Sample((np.conjugate(_Z),), {"deg": True}),
    ],
    np.real_if_close: [
        Sample((of_shape((3,)),)), Sample((_Z,)), Sample((_Z[0], 10)),
    ],
}  # fmt: skip
