"""Samples for products of vectors, matrices and tensors, and for einsum."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["PRODUCTS"]


def _s(*shape: int, seed: int = 0) -> Any:
    return of_shape(shape, -1.0, 1.0, seed)


def _two(*shapes: tuple[tuple[int, ...], tuple[int, ...]], **options: Any) -> list[Sample]:
    """Arrays of these shapes, and complex ones of the first, alone and beside real ones."""
    (one, two), *_ = shapes
    z, w = complex_numbers(one), complex_numbers(two, 3)
    given = [(_s(*one), _s(*two, seed=1)) for one, two in shapes]
    given += [(z, w), (z, _s(*two)), (_s(*one), w)]
    return [Sample(pair, options) for pair in given]


def _einsum(subscripts: str, *shapes: tuple[int, ...], **options: Any) -> Sample:
    arrays = [_s(*shape, seed=k) for k, shape in enumerate(shapes)]
    return Sample((subscripts, *arrays), options)


_A, _B, _C = _s(2, 3), _s(3, 2, seed=1), _s(2, 2, seed=2)
_Z, _W = complex_numbers((2, 3)), complex_numbers((3, 2), 4)
_X, _Y = complex_numbers((2, 3, 1)), complex_numbers((1, 3), 2)

PRODUCTS: Final[Table] = {
    np.dot: [
        *_two(((2, 3), (3, 2)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (2, 3, 2)), ((2, 1, 3), (2, 3, 2)),
              ((), (2,)), ((2, 2), ()), ((0, 3), (3, 2)), ((2, 0), (0, 2))),
        Sample((_A.T, _s(2, 2)[:, ::-1])), Sample((_A, 2.5)), Sample((2.5, _A)),
    ],
    np.vdot: [*_two(((2, 3), (3, 2)), ((3,), (3,)), ((0,), (0,))), Sample((_A.T, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))],
    np.inner: _two(((2, 3), (2, 3)), ((3,), (3,)), ((2, 2, 3), (3,)), ((), (2,)), ((0, 3), (2, 3))),
    np.outer: [*_two(((2,), (3,)), ((2, 2), (3,)), ((), (2, 1)), ((0,), (2,))), Sample((_A.T, _A[0, ::-1]))],
    np.tensordot: [
        *_two(((2, 3, 2), (3, 2, 2)), ((2, 3), (2, 3)), axes=2), *_two(((2, 3), (3, 2)), axes=1),
        Sample((_s(2, 3, 2), _s(2, 2), ([0, 2], [1, 0]))), Sample((_A, _B, (-1, 0))), Sample((_A, _s(2)), {"axes": 0}),
        Sample((_s(0, 3), _B), {"axes": 1}), Sample((_A.T, _A.T), {"axes": ((0,), (0,))}),
    ],
    np.vecdot: [
        *_two(((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1, 3), (2, 3)), ((3,), (3,)), ((2, 0), (0,))),
        *_two(((3, 2), (3, 1)), axis=0),
    ],
    np.matvec: _two(((2, 3), (3,)), ((2, 2, 3), (3,)), ((2, 3), (2, 3)), ((2, 1, 2, 3), (2, 3)), ((0, 3), (3,))),
    np.vecmat: _two(((3,), (3, 2)), ((2, 3), (3, 2)), ((3,), (2, 3, 2)), ((2, 1, 3), (2, 3, 2)), ((0,), (0, 2))),
    np.kron: _two(((2, 3), (2, 2)), ((2,), (3,)), ((2,), (2, 1, 2)), ((), (2,)), ((0, 2), (2, 1))),
    np.cross: [
        *_two(((2, 3), (3,)), ((3,), (2, 1, 3)), ((0, 3), (3,))), Sample((_s(3, 2), _s(3, 2, seed=1)), {"axis": 0}),
        Sample((_s(3, 2), _s(2, 3), 0, 1, 0)), Sample((_A[:, ::-1], _A)),
    ],
    np.linalg.cross: [*_two(((2, 3), (2, 3))), Sample((_s(3, 2), _s(3, 2, seed=1)), {"axis": 0})],
    np.linalg.outer: _two(((2,), (3,))),
    np.linalg.vecdot: [*_two(((2, 3), (3,))), *_two(((3, 2), (3, 1)), axis=0)],
    np.linalg.tensordot: [*_two(((2, 3, 2), (3, 2, 2))), Sample((_A, _B), {"axes": ([1], [0])})],
    np.linalg.matmul: _two(((2, 3), (3, 2)), ((2, 2, 3), (3,))),
    np.linalg.multi_dot: [
        Sample(([_A, _B],)), Sample(([_s(3), _s(3, 4), _s(4, 2), _s(2)],)), Sample(([_s(4, 1), _s(1, 4), _s(4, 2)],)),
        Sample(((_Z, _W, _C, _A),)),
    ],
    np.linalg.matrix_power: [
        *[Sample((_C, n)) for n in (1, 2, 3, 7, -1, -2)], Sample((_s(2, 2, 2), 4)),
        Sample((complex_numbers((2, 2)), 5)),
        Sample((_C, 0)),
    ],
    np.trace: [
        Sample((_A,)), Sample((_s(3, 3), 1)), Sample((_s(2, 3, 2), 0, 2, 0)), Sample((_s(3, 2), -1)), Sample((_Z,)),
        Sample((_s(0, 2),)), Sample((_A.T,), {"dtype": np.float64}),
    ],
    np.linalg.trace: [Sample((_s(2, 3, 3),)), Sample((_Z,), {"offset": 1})],
    np.linalg.diagonal: [Sample((_s(2, 3, 2),)), Sample((_Z,), {"offset": 1})],
    np.einsum: [
        _einsum("ij,jk->ik", (2, 3), (3, 2)), _einsum("ij,jk", (2, 3), (3, 2)), _einsum("ij,kj->ki", (2, 3), (2, 3)),
        _einsum("ba", (2, 3)), _einsum("ij->ji", (2, 3)), _einsum("ij->", (2, 3)), _einsum("...->...", (2, 3)),
        _einsum("ii", (3, 3)), _einsum("ii->i", (3, 3)), _einsum("iji->j", (2, 3, 2)), _einsum("iii", (2, 2, 2)),
        _einsum("ii,ij->j", (2, 2), (2, 3)), _einsum("iij,jkk->ik", (2, 2, 3), (3, 2, 2)),
        _einsum("i,i", (3,), (3,)), _einsum("i,j", (2,), (3,)), _einsum("ij,ij->ij", (2, 3), (2, 3)),
        _einsum("ij,k->", (2, 3), (2,)), _einsum("ijk,k->i", (2, 3, 2), (2,)), _einsum(",ij->ji", (), (2, 3)),
        _einsum("bij,bjk->bik", (2, 2, 3), (2, 3, 2)), _einsum("bqhd,bkhd->bhqk", (2, 2, 1, 3), (2, 1, 1, 3)),
        _einsum("abcd,cdef->fbea", (2, 1, 2, 3), (2, 3, 1, 2)), _einsum("ijk,jil->kl", (2, 3, 2), (3, 2, 2)),
        _einsum("...ij,...jk->...ik", (2, 1, 2, 3), (2, 3, 2)), _einsum("...ij,jk", (2, 2, 3), (3, 2)),
        _einsum("i...,i...->...", (3, 2), (3,)), _einsum("...i->i...", (2, 1, 3)), _einsum("...,...", (2, 1), (3,)),
        # An axis of length 1 broadcasts, whether it is summed over or not.
        _einsum("ij,ij->i", (1, 3), (2, 3)), _einsum("i,i", (1,), (3,)), _einsum("ij,ij->", (2, 1), (1, 3)),
        _einsum("ij,jk->ik", (2, 1), (3, 2)), _einsum("i,i,i->i", (1,), (3,), (1,)),
        _einsum("i,ij->j", (0,), (0, 2)), _einsum("ij,jk->ik", (0, 2), (2, 3)), _einsum("ii->i", (0, 0)),
        _einsum("ij,jk,kl->il", (2, 3), (3, 2), (2, 2)), _einsum("ij,jk,kl", (2, 3), (3, 2), (2, 2), optimize=True),
        _einsum("i,j,k->kji", (2,), (3,), (2,)), _einsum("a,ab,abc,cd->d", (2,), (2, 2), (2, 2, 3), (3, 2), optimize="optimal"),
        _einsum("ij,jk,ki->", (2, 3), (3, 2), (2, 2), optimize=["einsum_path", (0, 1), (0, 1)]),
        _einsum("ij,jk,kl,lm->im", (2, 3), (3, 2), (2, 2), (2, 1), optimize=["einsum_path", (0, 2, 3), (0, 1)]),
        _einsum("ii,ij,...j->...", (2, 2), (2, 3), (2, 3)), _einsum("i, i , i", (2,), (2,), (2,), optimize=("greedy", 10)),
        Sample((_A, [0, 1], _B, [1, 2])), Sample((_A, [0, 1], _B, [1, 2], [2, 0])), Sample((_C, [3, 3], [3])),
        Sample((_s(2, 2, 3), [..., 7, 1], _B, [1, 30], [..., 30, 7])), Sample((_A, [1, 0])), Sample((_A, [4, ...], [..., 4])),
        Sample(("ij,jk->ik", _A.T[::-1], _B.T)), Sample(("i,i->", _A[0], 2.0 * _A[1]), fixed=(2,)), Sample((",i", 2.0, _A[0])),
        Sample(("ij,jk->ik", _Z, _W)), Sample(("ij,jk->ik", _Z, _B)), Sample(("ij,jk", _A, _W)), Sample(("ij->j", _Z)),
        Sample(("ijk,lj,ki->l", _X, _Y, _W[:1, :])),
    ],
}  # fmt: skip
