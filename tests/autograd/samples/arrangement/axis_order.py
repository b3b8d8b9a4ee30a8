"""Samples for functions that give axes another order or direction."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["AXIS_ORDER"]

_A: Final = of_shape((2, 3))
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_LINE: Final = of_shape((4,))[::-1]
_EMPTY: Final = of_shape((0, 3))
_SCALAR: Final = of_shape(())
_Z: Final = complex_numbers((2, 3))

AXIS_ORDER: Final[Table] = {
    np.moveaxis: [
        Sample((_CUBE, 0, -1)), Sample((_CUBE, (0, -1), (1, 0))), Sample((_CUBE, [], [])),
        Sample((_EMPTY, 1, 0)), Sample((_Z, 0, 1)), Sample((_CUBE.T[::-1], [2, 0], [0, 1])),
    ],
    np.rollaxis: [Sample((_CUBE, 2)), Sample((_CUBE, 0, 3)), Sample((_CUBE, -2, -1)), Sample((_EMPTY, 1))],
    np.matrix_transpose: [Sample((_A,)), Sample((_CUBE,)), Sample((_EMPTY,)), Sample((_Z,))],
    np.linalg.matrix_transpose: [Sample((_CUBE,)), Sample((_Z,))],
    np.flip: [
        Sample((_CUBE,)), Sample((_CUBE, 1)), Sample((_CUBE, (0, -1))), Sample((_SCALAR,)),
        Sample((_EMPTY, 0)), Sample((_LINE,)), Sample((_A, ())), Sample((_Z,)),
    ],
    np.flipud: [Sample((_A,)), Sample((_LINE,)), Sample((_EMPTY,))],
    np.fliplr: [Sample((_A,)), Sample((_CUBE,)), Sample((_EMPTY,))],
    np.rot90: [
        Sample((_A,)), Sample((_A, 2)), Sample((_A, -1)), Sample((_A, 4)), Sample((_CUBE, 3, (2, 0))),
        Sample((_EMPTY,)), Sample((_Z, 1)),
    ],
    np.roll: [
        Sample((_A, 1)), Sample((_A, -7)), Sample((_A, 2), {"axis": 1}), Sample((_CUBE, (1, -2), (0, 2))),
        Sample((_CUBE, 1, (0, 1))), Sample((_A, (1, 1), (0, 0))), Sample((_EMPTY, 1)), Sample((_SCALAR, 3)),
        Sample((_LINE, [1], 0)), Sample((_Z, 1)), Sample((_A.T, np.array(2))),
    ],
}  # fmt: skip
