"""Samples for functions that move items, and for products."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["SHAPES"]

_A, _B, _C = of_shape((2, 3)), of_shape((2, 3), seed=1), of_shape((2, 1), seed=2)
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_EMPTY: Final = of_shape((0, 3))
_SCALAR: Final = of_shape(())


def _s(*shape: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return of_shape(shape, -1.0, 1.0, seed)


SHAPES: Final[Table] = {
    np.reshape: [
        Sample((_A, (3, 2))), Sample((_A, -1)), Sample((_A.T, (-1, 2))), Sample((_SCALAR, (1, 1))),
        Sample((_EMPTY, (3, 0, 2))), Sample((_A[::-1], 6)),
        Sample((_A, (3, 2), "F")), Sample((_CUBE.T, (4, -1), "A")), Sample((_A, [6]), {"copy": True}),
        Sample((_A, (3, -1)), {"copy": False}),
    ],
    np.ravel: [
        Sample((_A,)), Sample((_A.T,)), Sample((_SCALAR,)), Sample((_EMPTY,)), Sample((_A, "F")), Sample((_A.T, "A")),
        Sample((_CUBE.swapaxes(0, 1), "K")),
    ],
    np.squeeze: [Sample((_C,)), Sample((_C[None], (0, 2))), Sample((_SCALAR,)), Sample((_A,))],
    np.expand_dims: [Sample((_A, 1)), Sample((_A, (0, -1))), Sample((_SCALAR, 0))],
    np.transpose: [Sample((_A,)), Sample((_CUBE, (2, 0, -2))), Sample((_SCALAR,)), Sample((_EMPTY,))],
    np.swapaxes: [Sample((_CUBE, 0, -1)), Sample((_EMPTY, 0, 1))],
    np.broadcast_to: [
        Sample((of_shape((3,)), (2, 3))), Sample((_C, (2, 2, 3))), Sample((_SCALAR, 2)),
        Sample((_EMPTY, (2, 0, 3))),
    ],
    np.concatenate: [
        Sample(([_A, _C],), {"axis": 1}), Sample(([_A, _B, _A],)), Sample(([_A, _C],), {"axis": None}),
        Sample(([_EMPTY, _A], 0)), Sample(((_A, _B), -1)),
        Sample(([_A, _B],), {"dtype": np.complex128}),
    ],
    np.stack: [Sample(([_A, _B, _A],), {"axis": -1}), Sample(([_SCALAR, _SCALAR],)), Sample(([_A, _B], 1)), Sample(([_A, _B],), {"dtype": "c16"})],
    np.astype: [Sample((_A, np.float64)), Sample((_A, np.complex128)), Sample((_SCALAR, "float64"))],
    np.matmul: [
        Sample((_s(2, 3), _s(3, 4))), Sample((_s(2, 3), _s(3))), Sample((_s(3), _s(3, 2))),
        Sample((_s(3), _s(3, seed=1))), Sample((_s(2, 2, 3), _s(2, 3, 2))),
        Sample((_s(2, 1, 2, 3), _s(3, 2))), Sample((_s(2, 2, 3), _s(3))), Sample((_s(3), _s(2, 3, 2))),
        Sample((_s(0, 3), _s(3, 2))), Sample((_s(2, 0), _s(0, 2))), Sample((_s(3, 2).T, _s(3, 2)[:, ::-1])),
        Sample((complex_numbers((2, 3)), complex_numbers((3, 2), 4))),
        Sample((complex_numbers((2, 3)), _s(3))),
    ],
}  # fmt: skip
