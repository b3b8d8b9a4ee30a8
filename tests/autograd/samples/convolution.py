"""Samples for convolution and correlation: each mode, even and odd, longer and shorter."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["CONVOLUTION"]

_A: Final = {n: of_shape((n,), -1.0, 1.0) for n in (1, 3, 4, 5)}
_V: Final = {n: of_shape((n,), -1.0, 1.0, seed=1) for n in (1, 2, 3, 4)}
_Z: Final = complex_numbers((3,))

_PAIRS: Final = [
    *[
        Sample((_A[n], _V[m]), {"mode": mode})
        for n, m in ((5, 2), (4, 3), (1, 4), (3, 4), (1, 1))
        for mode in ("full", "same", "valid")
    ],
    Sample((_A[5], _V[3])),
    Sample((_A[4][::-1], _V[4][::2], "same")),
    Sample((_Z, _V[2])),
    Sample((_V[4], _Z, "same")),
    Sample((_Z, complex_numbers((4,)), "same")),
    Sample((_Z, complex_numbers((2,), 3), "full")),
    Sample((_A[3], [0.5, -2.0])),
    Sample((_A[3], _V[2]), fixed=(0,)),
]

CONVOLUTION: Final[Table] = {
    np.convolve: [*_PAIRS, Sample((_A[3], of_shape(())))],
    np.correlate: _PAIRS,
}
