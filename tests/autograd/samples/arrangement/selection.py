"""Samples for functions that choose items by index or by condition."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["SELECTION"]

_A: Final = of_shape((2, 3))
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_LINE: Final = of_shape((4,))[::-1]
_EMPTY: Final = of_shape((0, 3))
_SCALAR: Final = of_shape(())
_Z: Final = complex_numbers((2, 3))
_REPEATED: Final = np.array([[1, 0], [1, 1]])
_NONE: Final = np.zeros(0, int)

SELECTION: Final[Table] = {
    np.take: [
        Sample((_A, 4)), Sample((_A, _REPEATED)), Sample((_A, [2, -1, 0, 2]), {"axis": 1}),
        Sample((_CUBE, _REPEATED, 1)), Sample((_CUBE, 0, -1)), Sample((_A, _NONE, 0)),
        Sample((_A, [5, -4, 0], 1), {"mode": "wrap"}), Sample((_A, [5, -4, 0], 1), {"mode": "clip"}),
        Sample((_EMPTY, [1, 1], 1)), Sample((_A.T[::-1], (0, 2), 0)), Sample((_Z, [1, 1], 0)),
        Sample((_LINE, [True, False])), Sample((_SCALAR, [0, 0])), Sample((_A, np.uint8(1), 0)),
    ],
    np.take_along_axis: [
        Sample((_A, np.array([[0, 0], [2, 1]]), 1)), Sample((_CUBE, np.array([[[1, -1]]]), 1)),
        Sample((_A, np.array([5, 5, 0]), None)), Sample((_A, np.array([[0], [-1], [0]]), 0)),
        Sample((_A.T, np.zeros((3, 0), int)), {"axis": -1}), Sample((_Z, np.array([[1, 1, 0]]), 0)),
        Sample((_LINE, np.array([3, 3])), {"axis": 0}), Sample((_A[:1], np.array([[1], [1]]), 1)),
    ],
}  # fmt: skip
