"""Samples for polynomials, covariances and correlations."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["POLYNOMIALS"]

_P: Final = of_shape((4,), -1.0, 1.0)
_Q: Final = of_shape((2,), -1.0, 1.0, seed=1)
_ZEROS_FIRST: Final = [0.0, 0.0, 2.0, -1.0]
_Z: Final = complex_numbers((3,))
_X: Final = of_shape((2, 3), -1.0, 1.0)
_ROWS: Final = of_shape((3, 4), -1.0, 1.0)
_COUNTS: Final = np.array([1, 3, 2, 1])
_WEIGHTS: Final = of_shape((4,))
_X4: Final = np.array([-0.9, -0.1, 0.3, 1.0])
_SUMS: Final = [
    Sample((_P, _Q)), Sample((_Q, _P)), Sample((_P, _P[::-1])), Sample((_P, [1, 2])), Sample((_Z, _Q)),
    Sample((_P, 2.0)), Sample((of_shape(()), _P)),
]  # fmt: skip

POLYNOMIALS: Final[Table] = {
    np.polyval: [
        Sample((_P, _X)), Sample((_P, 0.7)), Sample(([1, 0, 2], _X.T)), Sample((_P[:1], of_shape(()))),
        Sample((_P[:0], _X)), Sample((_Z, _X)), Sample((_Z, complex_numbers((2,), 3))), Sample((_P, [1, 2])),
    ],
    np.polyadd: _SUMS,
    np.polysub: _SUMS,
    np.polymul: [*_SUMS, Sample((_P, _ZEROS_FIRST)), Sample((_P, [0.0]))],
    np.polyder: [Sample((_P,)), Sample((_P, 2)), Sample((_P, 0)), Sample((_Q, 2)), Sample((_Z,))],
    np.polyint: [
        Sample((_P,)), Sample((_P, 2)), Sample((_P, 0)), Sample((_P, 2, [0.5, 1.0])), Sample((_Z,)),
        Sample((_P,), {"k": 3.0}), Sample((_P, 2), {"k": of_shape((2,))}), Sample((_P, 2, 0.5)),
    ],
    np.vander: [
        Sample((_P,)), Sample((_P, 3)), Sample((_Z, 2, True)), Sample((_P, 1)), Sample((_P, 0)),
    ],
    np.polydiv: [Sample((_P, _Q)), Sample((_Q, _P)), Sample((_P, [2.0, 1.0, 3.0])), Sample((_P, 2.0)), Sample((_Z, _Q))],
    np.polyfit: [
        Sample((_X4, _P, 1)), Sample((_X4, np.stack([_P, _P[::-1]], 1), 2)), Sample((_X4, _P, 3)),
        Sample((_X4, _P, 1), {"w": _WEIGHTS}), Sample((_X4, _P, 1, 1e-9, True)),
        Sample((_X4, np.stack([_P], 1), 1), {"w": [1.0, 2.0, 0.5, 1.0]}),
    ],
    np.cov: [
        Sample((_ROWS,)), Sample((_ROWS, _ROWS[1:] ** 2)), Sample((_P,)), Sample((_P, _ROWS[0])),
        Sample((_ROWS, None, False)), Sample((_ROWS,), {"ddof": 2}), Sample((_ROWS, None, True, True)),
        Sample((_ROWS,), {"fweights": _COUNTS}), Sample((_ROWS,), {"aweights": _WEIGHTS}),
        Sample((_ROWS,), {"fweights": _COUNTS, "aweights": _WEIGHTS, "ddof": 2}),
        Sample((_ROWS + 1j * _ROWS[::-1] ** 2,)), Sample((_ROWS[:, :3], _P[:3, None]), {"rowvar": False}),
    ],
    np.corrcoef: [
        Sample((_ROWS,)), Sample((_ROWS[0], _ROWS[1])), Sample((_ROWS,), {"rowvar": False}), Sample((_P,)),
        Sample((_ROWS + 1j * _ROWS[::-1] ** 2,)),
    ],
}  # fmt: skip
