"""Samples for functions that join arrays, put items in and leave them out, and repeat them."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["STACKING"]

_A, _B, _C = of_shape((2, 3)), of_shape((2, 3), seed=1), of_shape((2, 1), seed=2)
_LINE, _OTHER = of_shape((3,))[::-1], of_shape((2,), seed=3)
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_EMPTY: Final = of_shape((0, 3))
_SCALAR: Final = of_shape(())
_Z: Final = complex_numbers((2, 3))

STACKING: Final[Table] = {
    np.atleast_1d: [Sample((_SCALAR,)), Sample((_A, _SCALAR)), Sample((_Z,))],
    np.atleast_2d: [Sample((_SCALAR,)), Sample((_LINE,)), Sample((_CUBE, _LINE)), Sample((_EMPTY,))],
    np.atleast_3d: [Sample((_SCALAR,)), Sample((_LINE,)), Sample((_A.T,)), Sample((_CUBE, _A))],
    np.hstack: [
        Sample(([_A, _C],)), Sample(((_LINE, _SCALAR, _OTHER),)), Sample(([_A, _Z],)), Sample(([_A],), {"dtype": np.complex128}),
    ],
    np.vstack: [Sample(([_A, _EMPTY, _LINE],)), Sample(([_SCALAR, _SCALAR],)), Sample(([_A, _B],), {"dtype": "f8"})],
    np.dstack: [Sample(([_A, _B],)), Sample(([_LINE, _LINE],)), Sample(([_SCALAR, _CUBE[:1, :1]],))],
    np.column_stack: [Sample(([_LINE, _LINE],)), Sample(([_OTHER, _A, _C],)), Sample(([_EMPTY.T, _LINE],))],
    np.block: [
        Sample(([[_A, _C], [_B, _C]],)), Sample(([_LINE, _SCALAR, 2.0],)), Sample((_A,)),
        Sample(([[[_CUBE]], [[_CUBE]]],)), Sample(([[_SCALAR], [_SCALAR]],)), Sample(([_A, _Z],)),
    ],
    np.append: [Sample((_A, _SCALAR)), Sample((_A, _C), {"axis": 1}), Sample((_A, [[1.5]])), Sample((_EMPTY, _A, 0))],
    np.insert: [
        Sample((_A, 1, _SCALAR)), Sample((_A, 1, _SCALAR, 1)), Sample((_A, 1, _OTHER, 1)), Sample((_A, [1], _C), {"axis": 1}),
        Sample((_A, [0, 2, 2], _LINE), {"axis": 1}), Sample((_A, 0, _B, 0)), Sample((_A, slice(0, 2), _OTHER)),
        Sample((_LINE, [-1, 1], _OTHER)), Sample((_EMPTY, 0, _LINE, 0)), Sample((_A, [1], _A[:, :2], 1)),
        Sample((_LINE, np.array([True, False, True]), _OTHER)), Sample((_Z, 1, _SCALAR, 0)), Sample((_CUBE, [2, 0], _OTHER, 1)),
    ],
    np.delete: [
        Sample((_A, 1)), Sample((_A, -1, 1)), Sample((_A, [0, 2, 0], 1)), Sample((_A, slice(None, None, 2), 1)),
        Sample((_LINE, np.array([True, False, True]))), Sample((_CUBE, 1), {"axis": -2}), Sample((_LINE, [])), Sample((_Z, 0, 0)),
    ],
    np.tile: [
        Sample((_A, 2)), Sample((_A, (2, 1, 3))), Sample((_CUBE, (2, 1))), Sample((_SCALAR, 3)), Sample((_A, 0)),
        Sample((_EMPTY, (2, 2))), Sample((_A.T, [1, 2])), Sample((_Z, 2)), Sample((_LINE, ())),
    ],
    np.repeat: [
        Sample((_A, 2)), Sample((_A, 3, 1)), Sample((_A, [1, 0, 2]), {"axis": 1}), Sample((_A, [2], 0)), Sample((_A, 0, 0)),
        Sample((_SCALAR, 3)), Sample((_EMPTY, 2, 1)), Sample((_LINE, np.array([0, 2, 1]))), Sample((_Z, 2, -1)),
    ],
    np.full_like: [
        Sample((_A, _SCALAR)), Sample((_A, _A[0])), Sample((_EMPTY, _SCALAR)), Sample((_SCALAR, _SCALAR)),
        Sample((_A, _LINE), {"shape": (2, len(_LINE))}), Sample((_Z, _SCALAR)),
    ],
    np.resize: [
        Sample((_A, (3, 3))), Sample((_A, 4)), Sample((_A, (2, 0))), Sample((_SCALAR, (2, 2))), Sample((_LINE, (7,))), Sample((_Z, 3)),
    ],
}  # fmt: skip
