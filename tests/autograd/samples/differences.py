"""Samples for differences, weights, conditions, and functions of the user's along axes."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["CONDITIONS", "DIFFERENCES", "WEIGHTING"]

_A, _B = of_shape((2, 3)), of_shape((2, 3), 2.0, 3.0, seed=1)
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_LINE: Final = of_shape((5,))[::-1]
_THREE: Final = of_shape((3,), seed=2)
_EMPTY: Final = of_shape((0, 3))
_SCALAR: Final = of_shape(())
_Z: Final = complex_numbers((2, 3))
_ODD: Final = np.array([1.5, np.nan, np.inf, -np.inf, -2.0])
_WHICH: Final = np.array([[0, 1, 1], [1, 0, 0]])
_MASK: Final = np.array([[True, False, True], [False, False, True]])
_PLACES: Final = np.array([3, 1, 1, 0, 3])

DIFFERENCES: Final[Table] = {
    np.diff: [
        Sample((_A,)), Sample((_CUBE, 2, 1)), Sample((_LINE, 7)), Sample((_A, 0)), Sample((_A,), {"axis": 0, "prepend": _SCALAR}),
        Sample((_A, 1), {"prepend": 0, "append": of_shape((2, 2), seed=3)}), Sample((_EMPTY,)), Sample((_EMPTY.T,)), Sample((_Z,)),
    ],
    np.ediff1d: [Sample((_A,)), Sample((_LINE, _THREE, _SCALAR)), Sample((_LINE,), {"to_begin": 1}), Sample((_SCALAR,)), Sample((_Z, [1.0]))],
    np.trapezoid: [
        Sample((_A,)), Sample((_A, _THREE)), Sample((_CUBE, _THREE), {"axis": 1}), Sample((_A, _B, 1.0, 0)), Sample((_LINE,), {"dx": 0.5}),
        Sample((_A,), {"dx": of_shape((2,))}), Sample((_Z, _THREE)), Sample((_CUBE, np.array([0, 2])), {"axis": 0}),
    ],
    np.lib.stride_tricks.sliding_window_view: [
        Sample((_LINE, 2)), Sample((_CUBE, (2, 2), (0, 1))), Sample((_A, (1, 3))), Sample((_A, 2, -1)), Sample((_LINE, (2, 2), (0, 0))),
        Sample((_Z[0], 3)), Sample((_EMPTY, 2), {"axis": 1}),
    ],
    np.unwrap: [
        Sample((7 * _LINE,)), Sample((9 * _A,), {"axis": 0}), Sample((5 * _CUBE,), {"axis": 1, "period": 2.5}), Sample((9 * _LINE, 4.0)),
        Sample((_EMPTY,)),
    ],
}  # fmt: skip

WEIGHTING: Final[Table] = {
    np.average: [
        Sample((_A,)), Sample((_A, 1)), Sample((_A, 0, _B)), Sample((_A, 1, _THREE)), Sample((_A,), {"weights": _B, "returned": True}),
        Sample((_CUBE, (1, 0), of_shape((3, 2))), {"keepdims": True}), Sample((_A, 1, [1, 2, 3])), Sample((_WHICH, 1, _THREE)),
        Sample((_Z, 1, _THREE)), Sample((_A, None), {"weights": _Z}),
    ],
    np.bincount: [Sample((_PLACES, _LINE)), Sample((_PLACES,), {"weights": _LINE, "minlength": 6}), Sample((np.zeros(0, int), _EMPTY[:, 0]))],
    np.histogram: [
        Sample((_LINE, 3), {"weights": of_shape((5,), seed=4)}, fixed=(0,)), Sample((_A, [0.6, 1.0, 1.1, 1.9]), {"weights": _B}, fixed=(0,)),
        Sample((_LINE, 3, (0.7, 1.5)), {"weights": of_shape((5,), seed=4), "density": True}, fixed=(0,)),
    ],
}  # fmt: skip

CONDITIONS: Final[Table] = {
    np.choose: [
        Sample((_WHICH, [_A, _B])), Sample((_WHICH, [_THREE, _SCALAR])), Sample((_WHICH + 1, (_A, _B)), {"mode": "clip"}),
        Sample((_WHICH - 1, [_A, _B]), {"mode": "wrap"}), Sample((1, [_A, _THREE])), Sample((_WHICH, _CUBE[0, :2, 0])), Sample((_WHICH, [_A, _Z])),
    ],
    np.select: [
        Sample(([_MASK, ~_MASK], [_A, _B])), Sample(([_MASK, _MASK], [_A, _B], _THREE)), Sample(([_MASK[0]], [_SCALAR], 2.5)),
        Sample(([_MASK], [_A],), {"default": _SCALAR}), Sample(([_MASK, ~_MASK[1]], [_Z, _A])),
    ],
    np.piecewise: [
        Sample((_A, [_MASK, ~_MASK], [np.square, np.exp])), Sample((_A, [_MASK], [np.sin, 0.5])), Sample((_LINE, _LINE < 1.0, [lambda x, k: k * x * x], 3.0)),
        Sample((_LINE, [_LINE < 1.0, _LINE < 1.5], [np.log, np.cos, lambda x: x**3])), Sample((_SCALAR, [True], [np.exp])),
        Sample((_A, [_MASK[:, 0]], [np.square])), Sample((_Z, [_MASK], [np.square])),
    ],
    np.nan_to_num: [
        Sample((_A,)), Sample((_ODD,), {"nan": 0.25, "posinf": 3.0, "neginf": -3.0}), Sample((_EMPTY,)), Sample((_SCALAR,)), Sample((_Z,)),
    ],
    np.compress: [
        Sample(([True, False, True], _A), {"axis": 1}), Sample(([False, True, True, False, True], _A)), Sample(([True], _CUBE, 1)),
        Sample(([0, 2], _Z, 0)), Sample(([False], _LINE)),
    ],
    np.extract: [Sample((_MASK, _A)), Sample((_MASK, _A.T)), Sample((_MASK[0], _A)), Sample((_MASK, _Z)), Sample((0 * _WHICH, _A))],
    np.trim_zeros: [
        # None has zeros: where one is trimmed, the result has another shape beside it.
        Sample((_LINE,)), Sample((_A, "b", 1)), Sample((_Z,)), Sample((_EMPTY,)),
    ],
    np.apply_along_axis: [
        Sample((np.cumsum, 0, _CUBE)), Sample((np.sum, 1, _CUBE)), Sample((np.diag, -1, _A)), Sample((lambda x, k: x * x * k, 1, _A, 2.0)),
        Sample((np.flip, 0, _LINE)),
    ],
    np.apply_over_axes: [Sample((np.sum, _CUBE, [0, 2])), Sample((np.prod, _A, 1)), Sample((np.cumsum, _CUBE, (1, -1)))],
}  # fmt: skip
