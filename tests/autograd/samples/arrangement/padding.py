"""Samples for `np.pad`: every mode, wider than the array is long too."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.fourier import linear
from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["PADDING"]

_A: Final = of_shape((3,), -1.0, 1.0)
_MATRIX: Final = of_shape((2, 2), -1.0, 1.0)
_Z: Final = complex_numbers((2,))

_STATISTICS: Final = ("maximum", "mean", "median", "minimum")
_MIRRORS: Final = ("reflect", "symmetric")

PADDING: Final[Table] = {
    np.pad: linear([
        Sample((_MATRIX, 1)), Sample((_MATRIX.T[::-1], ((1, 2), (0, 1)))), Sample((_A, (2, 0), "constant")),
        Sample((_MATRIX, (1, 0)), {"constant_values": ((0.5, 1.0), (2.0, 3.0))}), Sample((_Z, 1)),
        Sample((of_shape(()), 1)), Sample((of_shape((0, 2)), 1)),
        *[
            sample for mode in ("edge", "linear_ramp", "wrap", *_STATISTICS, *_MIRRORS)
            for sample in (Sample((_MATRIX, ((0, 1), (1, 0)), mode)), Sample((_A, (1, 2), mode)))
        ],
        *[Sample((_A, (5, 4), mode)) for mode in ("wrap", "edge", *_MIRRORS)],
        *[Sample((_A, (5, 4), mode), {"reflect_type": "odd"}) for mode in _MIRRORS],
        *[Sample((_A[:1], (1, 2), mode), {"reflect_type": "odd"}) for mode in _MIRRORS],
        *[Sample((of_shape((4,)), 1, mode), {"stat_length": (2, 3)}) for mode in _STATISTICS],
        Sample((_MATRIX, 1, "mean"), {"stat_length": ((1, 2), (2, 9))}),
        Sample((_MATRIX, 1, "linear_ramp"), {"end_values": ((0.5, 1.0), (2.0, 3.0))}),
        Sample((_Z, 3, "reflect")), Sample((_Z, 2, "linear_ramp")),
    ], 9),
}  # fmt: skip
