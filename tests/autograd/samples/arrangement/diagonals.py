"""Samples for diagonals, triangles, and what broadcasts arrays against each other."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["DIAGONALS", "GRIDS"]

_A: Final = of_shape((2, 3))
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_LINE: Final = of_shape((3,))[::-1]
_OTHER: Final = of_shape((2,), seed=1)
_EMPTY: Final = of_shape((0, 3))
_SCALAR: Final = of_shape(())
_Z: Final = complex_numbers((2, 3))

DIAGONALS: Final[Table] = {
    np.diagonal: [
        Sample((_A,)), Sample((_A, 1)), Sample((_A, -1)), Sample((_A.T, 7)), Sample((_CUBE,)),
        Sample((_CUBE, -1), {"axis1": 2, "axis2": 0}), Sample((_CUBE, 1, -2, -1)), Sample((_EMPTY,)), Sample((_Z,)),
    ],
    np.diag: [
        Sample((_LINE,)), Sample((_LINE, 1)), Sample((_LINE, -2)), Sample((_A,)), Sample((_A.T, -1)), Sample((_EMPTY,)),
        Sample((_Z, 1)), Sample((_EMPTY[:, 0],)),
    ],
    np.diagflat: [Sample((_A,)), Sample((_SCALAR, 1)), Sample((_LINE, -1)), Sample((_Z,))],
    np.tril: [Sample((_A,)), Sample((_A, -1)), Sample((_CUBE, 1)), Sample((_LINE,)), Sample((_EMPTY,)), Sample((_Z,))],
    np.triu: [Sample((_A,)), Sample((_A.T, -1)), Sample((_CUBE, 1)), Sample((_LINE, 1)), Sample((_EMPTY,)), Sample((_Z,))],
}  # fmt: skip

GRIDS: Final[Table] = {
    np.broadcast_arrays: [Sample((_A, _LINE, _SCALAR)), Sample((_A,)), Sample((_EMPTY, _LINE)), Sample((_Z, _SCALAR))],
    np.meshgrid: [
        Sample((_LINE, _OTHER)), Sample((_LINE, _OTHER), {"indexing": "ij"}), Sample((_LINE, _OTHER), {"sparse": True}),
        Sample((_LINE, _OTHER, _SCALAR), {"copy": False}), Sample((_LINE,)), Sample((_OTHER, _EMPTY[:, 0])),
        Sample((_LINE, _Z[0], _OTHER), {"sparse": True, "indexing": "ij"}),
    ],
    np.ix_: [Sample((_LINE, _OTHER)), Sample((_LINE,)), Sample((_OTHER, np.array([True, False, True])))],
}  # fmt: skip
