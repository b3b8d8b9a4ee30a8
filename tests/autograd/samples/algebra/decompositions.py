"""Samples for decompositions of matrices: of distinct values, whose vectors only have a sign free.

What has a rotation or a phase free is proved by tests/autograd/ops/test_decompositions.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.types import Array
from tests.autograd.samples.algebra.linear_systems import hermitian
from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["DECOMPOSITIONS", "complex_matrix", "matrix"]


def matrix(*shape: int, seed: int = 0) -> Array:
    """A matrix, or a batch of them, whose eigenvalues and singular values lie well apart."""
    steep = np.zeros(shape)
    index = np.arange(min(shape[-2:]))
    steep[..., index, index] = 1.5 * (index + 1)
    return of_shape(shape, -0.5, 0.5, seed) + steep


def complex_matrix(*shape: int, seed: int = 0) -> Array:
    """The same of complex numbers."""
    return matrix(*shape, seed=seed) + 0.5j * of_shape(shape, -1.0, 1.0, seed + 1)


_SQUARE: Final = matrix(3, 3)
_WIDE, _TALL = matrix(2, 3), matrix(3, 2, seed=1)
_ONE: Final = matrix(1, 1)
_BATCH: Final = matrix(2, 2, 2)
_EMPTY: Final = np.zeros((0, 2, 2))
_Z: Final = complex_matrix(2, 2)
_SQUARES: Final = [_SQUARE, _ONE, _BATCH, _EMPTY, _SQUARE.T[::-1, ::-1]]
_OBLONG: Final = [*_SQUARES, _WIDE, _TALL]
# Eigenvalues that come in pairs, of real numbers.
_TURNING: Final = np.array([[0.3, -1.2], [0.9, 0.4]])


_SYMMETRIC: Final = [hermitian(a) for a in _SQUARES]
_H: Final = hermitian(_Z)


def _each(arrays: list[Any], **options: Any) -> list[Sample]:
    return [Sample((a,), options) for a in arrays]


def _hermitian(arrays: list[Any], **options: Any) -> list[Sample]:
    return [Sample((a,), options, through=hermitian) for a in arrays]


_SYSTEM: Final = (matrix(4, 2), of_shape((4,)))
_DEFICIENT: Final = np.outer(of_shape((3,)), of_shape((2,), seed=1))

DECOMPOSITIONS: Final[Table] = {
    np.linalg.eigh: [*_hermitian(_SYMMETRIC), *_hermitian(_SYMMETRIC[:1], UPLO="U")],
    np.linalg.eigvalsh: [*_hermitian([*_SYMMETRIC, _H]), *_hermitian([_SYMMETRIC[0], _H], UPLO="U")],
    np.linalg.eig: _each(_SQUARES),
    np.linalg.eigvals: _each([*_SQUARES, _Z, _TURNING]),
    np.linalg.svd: [
        *_each(_OBLONG, full_matrices=False), *_each([*_SQUARES, _WIDE, _TALL]),
        *_hermitian(_SYMMETRIC[:3], hermitian=True), *_each([_WIDE, _Z], compute_uv=False),
        *_hermitian([_H], compute_uv=False, hermitian=True), Sample((_TALL.T, False)),
    ],
    np.linalg.svdvals: _each([*_OBLONG, _Z, complex_matrix(3, 2)]),
    np.linalg.qr: [
        *_each([*_OBLONG, _Z, complex_matrix(3, 2), complex_matrix(2, 4), matrix(2, 3, 2)]),
        *_each([_SQUARE, _WIDE, _TALL], mode="complete"),
        *_each([_WIDE, matrix(4, 2), _Z], mode="r"),
    ],
    np.linalg.pinv: [
        *_each([*_OBLONG, _Z, complex_matrix(2, 3)]), *_hermitian([_SYMMETRIC[0], _H], hermitian=True),
        Sample((_TALL, 1e-9)), *_each([_WIDE], rtol=1e-9),
    ],
    np.linalg.lstsq: [
        Sample(_SYSTEM), Sample((matrix(4, 2), of_shape((4, 3)))), Sample((_SQUARE, of_shape((3, 2)))),
        Sample((_WIDE, of_shape((2,)))), Sample((complex_matrix(3, 2), complex_numbers((3, 2)))),
        Sample((complex_matrix(3, 2), of_shape((3,)))), Sample((*_SYSTEM, 1e-9)),
        Sample((*_SYSTEM, -1)), Sample(_SYSTEM, fixed=(0,)), Sample(_SYSTEM, fixed=(1,)),
        # Of the matrix itself every change but a few adds to its rank, so none is differentiated.
        Sample((_DEFICIENT, of_shape((3,))), fixed=(0,)),
    ],
}  # fmt: skip
