"""Samples for interpolation and finite differences: before, between and after all knots."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape, unary

__all__ = ["INTERPOLATION"]

_KNOTS: Final = np.array([0.0, 0.4, 1.0, 1.3])
_VALUES: Final = of_shape((4,), -1.0, 1.0)
_X: Final = np.array([[-0.3, 0.1, 0.75], [1.1, 1.25, 1.6]])
_INSIDE: Final = _X[0, 1:]
_CUBE: Final = of_shape((2, 1, 2), -1.0, 1.0)
_TABLE: Final = of_shape((2, 3), -1.0, 1.0)
_LINE: Final = of_shape((4,), -1.0, 1.0)
_UNEVEN: Final = np.array([0.0, 0.5, 1.3, 1.7])
_Z: Final = complex_numbers((3,))

INTERPOLATION: Final[Table] = {
    np.interp: [
        Sample((_X, _KNOTS, _VALUES)), Sample((_X, _KNOTS, _VALUES, -2.0, 3.0)), Sample((_X, _KNOTS[1:], _Z)),
        Sample((_X.T[::-1], _KNOTS, _VALUES), {"left": np.array(0.5)}), Sample((0.7, _KNOTS, _VALUES)),
        Sample((of_shape(()), _KNOTS, _VALUES)), Sample((of_shape((0,)), _KNOTS, _VALUES)),
        Sample((_INSIDE, _KNOTS, _VALUES), fixed=(1, 2)), Sample((_INSIDE, [0, 1], _VALUES[:2])),
        Sample((_X, _KNOTS[:1] + 0.2, _VALUES[:1])),
        Sample((_X, _KNOTS[[2, 0, 3, 1]] + 0.05, _VALUES), {"period": 1.5}),
        Sample((_X, _KNOTS + 0.05, _VALUES), {"period": -2}),
    ],
    np.gradient: [
        Sample((_LINE,)), Sample((_LINE, 0.5)), Sample((_LINE, of_shape(()))), Sample((_LINE, _UNEVEN)),
        Sample((_LINE,), {"edge_order": 2}), Sample((_LINE, _UNEVEN), {"edge_order": 2}),
        Sample((_LINE[:2],)), Sample((_TABLE,)), Sample((_TABLE,), {"axis": 1}), Sample((_Z, 0.5)),
        Sample((_TABLE, 0.5, _UNEVEN[:3])), Sample((_CUBE, _UNEVEN[:2], 0.5), {"axis": (-1, 0)}),
        Sample((_TABLE, 0.5), {"axis": (1,), "edge_order": 2}), Sample((_LINE, _UNEVEN), fixed=(1,)),
        Sample(([0, 1, 4, 2], _UNEVEN)),
    ],
    np.i0: [*unary(-3.0, 3.0), Sample((np.array([0.0, 8.5, -9.0]),))],
}  # fmt: skip
