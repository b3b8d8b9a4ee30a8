"""Samples for norms of vectors and matrices."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers

__all__ = ["NORMS"]


def _s(*shape: int) -> Any:
    """Numbers of no pattern: those of `of_shape` have sums that are equal, and norms kinks there."""
    return np.asarray(np.random.default_rng(7).uniform(-1.0, 1.0, shape))


_INF: Final = float("inf")
_OF_VECTORS: Final = [None, 1, 2, 3, 2.5, 0.5, -1, _INF, -_INF]
_OF_MATRICES: Final = [None, "fro", "nuc", 1, -1, 2, -2, _INF, -_INF]
_Z: Final = complex_numbers((2, 2)) - 0.4
_V: Final = complex_numbers((3,)) - 0.3

NORMS: Final[Table] = {
    np.linalg.norm: [
        Sample((_s(2, 3, 2),)), Sample((_s(2, 2),)), Sample((_s(2, 3, 2),), {"keepdims": True}), Sample((_s(),)),
        Sample((_s(0, 3), None, 1)), Sample((_Z,)), Sample((_s(4)[::-1],)),
        *[Sample((_s(4), p)) for p in _OF_VECTORS],
        *[Sample((_s(3, 2), p, 0)) for p in _OF_VECTORS],
        *[Sample((_s(2, 3).T,), {"ord": p, "axis": -2, "keepdims": True}) for p in _OF_VECTORS],
        *[Sample((_V, p)) for p in _OF_VECTORS],
        *[Sample((_s(3, 2), p)) for p in _OF_MATRICES],
        *[Sample((_s(2, 2, 3), p, (2, 0))) for p in _OF_MATRICES],
        *[Sample((_s(2, 3, 2),), {"ord": p, "axis": (0, -1), "keepdims": True}) for p in _OF_MATRICES],
        *[Sample((_Z, p)) for p in _OF_MATRICES],
    ],
    np.linalg.vector_norm: [
        Sample((_s(2, 3),)), Sample((_s(2, 3, 2),), {"axis": (0, 2), "keepdims": True}),
        *[Sample((_s(2, 3, 2),), {"axis": (2, 0), "ord": p}) for p in _OF_VECTORS[1:]], Sample((_V,), {"ord": 3}),
    ],
    np.linalg.matrix_norm: [
        Sample((_s(2, 3, 2),)), *[Sample((_s(2, 2, 3),), {"ord": p, "keepdims": True}) for p in _OF_MATRICES[1:]],
        Sample((_Z,), {"ord": "nuc"}),
    ],
}  # fmt: skip
