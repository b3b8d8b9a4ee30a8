"""Samples for inverses, solutions, determinants and Cholesky factors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["LINEAR_SYSTEMS", "hermitian"]


def _s(*shape: int, seed: int = 0) -> Any:
    return of_shape(shape, -1.0, 1.0, seed)


def _regular(*shape: int, seed: int = 0) -> Any:
    """Matrices that are far from singular."""
    return _s(*shape, seed=seed) + 2.0 * np.eye(shape[-1])


def hermitian(a: Any) -> Any:
    """Returns the Hermitian part of a matrix; of a Hermitian one, the matrix itself."""
    turned = np.swapaxes(a, -1, -2)
    return 0.5 * (a + (np.conjugate(turned) if a.dtype.kind == "c" else turned))


_Z: Final = complex_numbers((2, 2)) + 1.5 * np.eye(2)
_SQUARES: Final = [
    _regular(3, 3), _regular(2, 2, 2), _regular(2, 1, 1, 1), _regular(3, 3).T[::-1], _s(0, 2, 2), _s(2, 0, 0), _Z,
]  # fmt: skip
_SINGULAR: Final = [
    np.array([[1.0, 2.0], [2.0, 4.0]]),
    np.arange(9.0).reshape(3, 3) / 4,
    np.zeros((2, 2)),
    np.diag([1.0, 2.0, 0.0, 0.0]),
    np.stack([np.ones((2, 2)), _regular(2, 2)]),
    (1 + 2j) * np.outer(_Z[0], _Z[1]),
]
_POSITIVE: Final = [
    hermitian(part @ part.conj().swapaxes(-1, -2) + np.eye(part.shape[-1]))
    for part in (_s(3, 3), _s(2, 2, 2), _s(1, 1), _s(0, 2, 2), _Z)
]

LINEAR_SYSTEMS: Final[Table] = {
    np.linalg.inv: [Sample((a,)) for a in _SQUARES],
    np.linalg.det: [Sample((a,)) for a in (*_SQUARES, *_SINGULAR)],
    np.linalg.slogdet: [Sample((a,)) for a in (*_SQUARES, -_regular(3, 3))],
    np.linalg.solve: [
        Sample((_regular(3, 3), _s(3))), Sample((_regular(3, 3), _s(3, 2))), Sample((_regular(2, 3, 3), _s(3))),
        Sample((_regular(2, 3, 3), _s(3, 2))), Sample((_regular(3, 3), _s(2, 3, 2))), Sample((_regular(2, 2), _s(2, 2, 1))),
        Sample((_regular(2, 1, 2, 2), _s(2, 2, 1))), Sample((_s(0, 2, 2), _s(2))), Sample((_regular(2, 2).T, _s(2, 2)[::-1])),
        Sample((_Z, complex_numbers((2,)))), Sample((_Z, _s(2, 2))), Sample((_regular(2, 2), complex_numbers((2,)))),
    ],
    np.linalg.cholesky: [
        Sample((a,), {"upper": upper}, through=hermitian) for a in _POSITIVE for upper in (False, True)
    ],
    np.linalg.tensorinv: [
        Sample((_regular(6, 6).reshape(2, 3, 6), 2)), Sample((_regular(4, 4).reshape(4, 2, 2),), {"ind": 1}),
        Sample((_Z[:, None],)),
    ],
    np.linalg.tensorsolve: [
        Sample((_regular(6, 6).reshape(2, 3, 6), _s(2, 3))), Sample((_regular(4, 4).reshape(2, 2, 4), _s(2, 2))),
        Sample((_regular(4, 4).reshape(2, 2, 4).transpose(0, 2, 1), _s(2, 2), (1,))), Sample((_Z, _s(2))),
    ],
    np.linalg.cond: [
        Sample((_regular(3, 3),), {"p": p}) for p in (1, -1, np.inf, -np.inf, "fro", "nuc", -2)
    ] + [Sample((_regular(3, 3),)), Sample((_regular(2, 2, 2), 2)), Sample((_s(3, 2),)), Sample((_Z,))],
}  # fmt: skip
