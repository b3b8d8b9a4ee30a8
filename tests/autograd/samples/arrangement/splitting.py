"""Samples for functions that split an array into parts."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["SPLITTING"]

_A: Final = of_shape((2, 3))
_CUBE: Final = of_shape((2, 4, 2), -1.0, 1.0)
_LINE: Final = of_shape((5,))[::-1]
_EMPTY: Final = of_shape((0, 3))
_Z: Final = complex_numbers((4,))

SPLITTING: Final[Table] = {
    np.split: [
        Sample((_CUBE, 2, 1)), Sample((_CUBE, [1, 3]), {"axis": -2}), Sample((_LINE, [3, 1])),
        Sample((_LINE, [-2])), Sample((_LINE, np.array([0, 2, 9]))), Sample((_LINE, 1)),
        Sample((_EMPTY, 3, 1)), Sample((_A.T, 3)), Sample((_Z, 2)), Sample((_LINE, (1, 1))),
        Sample((_A,), {"indices_or_sections": 2}), Sample((_LINE, [2, 1, 3])),
    ],
    np.array_split: [
        Sample((_LINE, 3)), Sample((_LINE, 7)), Sample((_CUBE, 3, 1)), Sample((_LINE, [2])),
        Sample((_EMPTY, 2)), Sample((_Z, 3)),
    ],
    np.vsplit: [Sample((_A, 2)), Sample((_A.T, [1]))],
    np.hsplit: [Sample((_A, 3)), Sample((_LINE, [2])), Sample((_CUBE, 2))],
    np.dsplit: [Sample((_CUBE, 2)), Sample((_CUBE, [1]))],
    np.unstack: [
        Sample((_A,)), Sample((_CUBE,), {"axis": -2}), Sample((_LINE,)), Sample((_Z,)),
        Sample((_A.T[:, ::-1],), {"axis": 1}),
    ],
}  # fmt: skip
