"""Samples for elementwise functions of several arguments."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, binary, of_shape

__all__ = ["ARITHMETIC"]

_INTEGERS: Final = np.array([-1, 2])
_MASK: Final = np.array([[True, False, True], [False, True, False]])
_A, _B = of_shape((2, 3)), of_shape((3,), seed=2)
_NAN: Final = np.array([1.0, np.nan, 0.3])

ARITHMETIC: Final[Table] = {
    np.add: binary(complex_too=True),
    np.subtract: binary(complex_too=True),
    np.multiply: binary((-1.0, 1.0), (-2.0, 1.0), complex_too=True),
    np.divide: binary((-1.0, 1.0), (0.5, 2.0), complex_too=True),
    np.power: [
        *binary((0.5, 2.0), (-1.0, 2.0), complex_too=True),
        Sample((of_shape((3,), -1.0, 1.0), 2)),
        Sample((of_shape((3,), -1.0, 1.0), np.array([0, 1, 3]))),
        Sample((2, of_shape((3,), -1.0, 1.0))),
    ],
    np.float_power: binary((0.5, 2.0), (-1.0, 2.0)),
    np.remainder: binary((4.1, 4.9), (1.05, 1.3), scalars=(7.6, 2.3)),
    np.fmod: [
        *binary((4.1, 4.9), (1.05, 1.3), scalars=(7.6, 2.3)),
        Sample((-of_shape((3,), 4.1, 4.9), of_shape((3,), 1.05, 1.3, seed=1))),
    ],
    np.divmod: binary((4.1, 4.9), (1.05, 1.3), scalars=(7.6, 2.3)),
    np.maximum: binary(),
    np.minimum: binary(),
    np.fmax: [*binary(), Sample((_NAN, np.array([np.nan, 2.0, 0.5])), second=False)],
    np.fmin: [*binary(), Sample((_NAN, np.array([np.nan, 2.0, 0.5])), second=False)],
    np.hypot: binary((-1.0, 1.0), (0.5, 2.0)),
    np.arctan2: binary((-1.0, 1.0), (0.5, 2.0)),
    np.logaddexp: binary((-1.0, 1.0), (-1.0, 2.0)),
    np.logaddexp2: binary((-1.0, 1.0), (-1.0, 2.0)),
    np.copysign: binary((-2.0, -0.5), (0.5, 2.0)),
    np.heaviside: [*binary((-2.0, -0.5), (0.5, 2.0))],
    np.ldexp: [
        Sample((of_shape((2,)), _INTEGERS)),
        Sample((of_shape((2, 1)), _INTEGERS)),
        Sample((of_shape(()), 3)),
    ],
    np.where: [
        Sample((_MASK, _A, _B)),
        Sample((_MASK, _A[::-1], 2.0)),
        Sample((_MASK[0], of_shape(()), _A)),
        Sample((True, _A, _B)),
        Sample((_MASK, _A + 1j, _B)),
    ],
    np.clip: [
        Sample((_A, 0.8, 1.51)),
        Sample((_A,), {"a_min": 0.8, "a_max": None}),
        Sample((_A,), {"max": 1.51}),
        Sample((_A, of_shape((3,), 0.7, 0.9, seed=3), of_shape((2, 1), 1.3, 1.7, seed=4))),
        Sample((of_shape(()), 0.1, 3.0)),
        Sample((of_shape((0, 2)), 0.1, 3.0)),
    ],
}
