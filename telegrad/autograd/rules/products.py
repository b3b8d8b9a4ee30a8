"""Products of vectors, matrices and tensors, each with its gradient rule: a contraction.

A rule is the gradient of the `einsum` that means the same: of `np.dot` of two matrices that is
`ij,jk->ik`. NumPy's `vdot`, `vecdot` and `vecmat` conjugate their first argument.
"""

from __future__ import annotations

import string
from functools import lru_cache
from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import Operation, composed, numpy_function, primitive
from telegrad.autograd.ops import matmul
from telegrad.autograd.rules.contraction import arrays_of, contraction, toward
from telegrad.types import Shape

__all__ = ["cross"]

_LETTERS: Final = string.ascii_letters
_REMEMBERED: Final = 256  # numbers of axes


@lru_cache(_REMEMBERED)
def _of_dot(n: int, m: int) -> str:
    a = _LETTERS[:n]
    if not n or not m:
        b = _LETTERS[n : n + m]
        return f"{a},{b}->{a}{b}"
    others = _LETTERS[n : n + m - 1]
    b = others[:-1] + a[-1] + others[-1:]
    return f"{a},{b}->{a[:-1]}{others}"


@lru_cache(_REMEMBERED)
def _of_inner(n: int, m: int) -> str:
    if not n or not m:
        return _of_dot(n, m)
    a, others = _LETTERS[:n], _LETTERS[n : n + m - 1]
    return f"{a},{others}{a[-1]}->{a[:-1]}{others}"


@lru_cache(_REMEMBERED)
def _of_tensordot(n: int, m: int, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    a, b = list(_LETTERS[:n]), list(_LETTERS[n : n + m])
    for i, j in zip(*axes, strict=True):
        b[j] = a[i]
    out = [x for x in a if x not in b] + [x for x in b if x not in a]
    return f"{''.join(a)},{''.join(b)}->{''.join(out)}"


def _axes_of_tensordot(n: int, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(axes, (int, np.integer)):
        return tuple(range(n - int(axes), n)), tuple(range(int(axes)))
    one, two = axes
    return _tuple(one), _tuple(two)


def _tuple(axes: Any) -> tuple[int, ...]:
    return tuple(np.atleast_1d(axes).tolist())


@lru_cache(_REMEMBERED)
def _of_vectors(n: int, m: int, axis: int = -1) -> str:
    """Vectors with vectors, on the axes before which all broadcast."""
    batch = _LETTERS[1 : max(n, m)]
    a, b = list(batch[len(batch) - n + 1 :]), list(batch[len(batch) - m + 1 :])
    a.insert(axis % n, "a")
    b.insert(axis % m, "a")
    return f"{''.join(a)},{''.join(b)}->{batch}"


@lru_cache(_REMEMBERED)
def _of_matvec(n: int, m: int) -> str:
    batch = _LETTERS[2 : 1 + max(n - 1, m)]
    return f"{batch[len(batch) - n + 2 :]}ab,{batch[len(batch) - m + 1 :]}b->{batch}a"


@lru_cache(_REMEMBERED)
def _of_vecmat(n: int, m: int) -> str:
    batch = _LETTERS[2 : 1 + max(n, m - 1)]
    return f"{batch[len(batch) - n + 1 :]}a,{batch[len(batch) - m + 2 :]}ab->{batch}b"


def _left(g: Any, b: Any, shape: Shape, of: Any, *how: Any) -> Any:
    if isinstance(b, (int, float, complex)):
        return g * b
    return toward(g, b, shape, of(len(shape), b.ndim, *how), 0)


def _right(g: Any, a: Any, shape: Shape, of: Any, *how: Any) -> Any:
    if isinstance(a, (int, float, complex)):
        return g * a
    return toward(g, a, shape, of(a.ndim, len(shape), *how), 1)


def _conjugate(g: Any) -> Any:
    return np.conjugate(g) if g.dtype.kind == "c" else g


def _there(of: Any, *, conjugate: bool = False) -> dict[str, Any]:
    """Returns the kernel for CuPy, which lacks these functions or has them since its version 14."""

    def multiply(x1: Any, x2: Any, axis: int | None = None) -> Any:
        subscripts = of(x1.ndim, x2.ndim) if axis is None else of(x1.ndim, x2.ndim, axis)
        return contraction(subscripts)(_conjugate(x1) if conjugate else x1, x2)

    return {"cupy": multiply}


cross: Operation  # declared, as its rules name it
_H: Final = "holomorphic"
_UFUNC: Final = {"dtype": None, "casting": "same_kind", "order": "K", "subok": True}

# fmt: off
dot       = numpy_function(np.dot,       "a b",   complex_rule=_H, a=lambda g, b, shape: _left(g, b, shape, _of_dot), b=lambda g, a, shape: _right(g, a, shape, _of_dot))
inner     = numpy_function(np.inner,     "a b",   complex_rule=_H, a=lambda g, b, shape: _left(g, b, shape, _of_inner), b=lambda g, a, shape: _right(g, a, shape, _of_inner))
outer     = numpy_function(np.outer,     "a b",   complex_rule=_H, a=lambda g, b, shape: (g @ np.ravel(b)).reshape(shape), b=lambda g, a, shape: (np.ravel(a) @ g).reshape(shape))
tensordot = numpy_function(np.tensordot, "a b",   complex_rule=_H, options={"axes": 2},
                           a=lambda g, b, shape, axes: _left(g, b, shape, _of_tensordot, _axes_of_tensordot(len(shape), axes)),
                           b=lambda g, a, shape, axes: _right(g, a, shape, _of_tensordot, _axes_of_tensordot(a.ndim, axes)))
matvec    = numpy_function(np.matvec,    "x1 x2", kernels=_there(_of_matvec), complex_rule=_H, x1=lambda g, x2, shape: _left(g, x2, shape, _of_matvec), x2=lambda g, x1, shape: _right(g, x1, shape, _of_matvec))
vecmat    = numpy_function(np.vecmat,    "x1 x2", kernels=_there(_of_vecmat, conjugate=True), complex_rule="own", x1=lambda g, x2, shape: _left(_conjugate(g), x2, shape, _of_vecmat), x2=lambda g, x1, shape: _right(g, x1, shape, _of_vecmat))
vecdot    = numpy_function(np.vecdot,    "x1 x2", kernels=_there(_of_vectors, conjugate=True), complex_rule="own", options={**_UFUNC, "axis": -1},
                           x1=lambda g, x2, shape, axis: _left(_conjugate(g), x2, shape, _of_vectors, axis), x2=lambda g, x1, shape, axis: _right(g, x1, shape, _of_vectors, axis))
# Of vectors of three items in the last axis.
cross     = primitive("cross", np.cross, "a b",   complex_rule=_H, a=lambda g, b: cross(b, g), b=lambda g, a: cross(g, a))
# fmt: on


@composed(np.vdot)
def _vdot(a: Any, b: Any, /) -> Any:
    a, b = arrays_of([a, b])
    return dot(_conjugate(np.ravel(a)), np.ravel(b))


@composed(np.kron)
def _kron(a: Any, b: Any) -> Any:
    ndim = max(np.ndim(a), np.ndim(b))
    one = (1,) * (ndim - np.ndim(a)) + np.shape(a)
    two = (1,) * (ndim - np.ndim(b)) + np.shape(b)
    # Axes of one and of two by turns, which then become one each.
    by_turns = np.reshape(a, [n for k in one for n in (k, 1)]) * np.reshape(
        b, [n for k in two for n in (1, k)]
    )
    return np.reshape(by_turns, tuple([n * m for n, m in zip(one, two, strict=True)]))


@composed(np.cross)
def _cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(a, axisa, -1), np.moveaxis(b, axisb, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise ValueError(
            f"cross of tensors takes vectors of 3 items, not of {a.shape[-1]} and {b.shape[-1]}; "
            "append a 0 to one of 2 items (NumPy deprecates these)"
        )
    return np.moveaxis(cross(a, b), -1, axisc)


@composed(np.linalg.cross)
def _linalg_cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return _cross(x1, x2, axis=axis)


@composed(np.linalg.outer)
def _linalg_outer(x1: Any, x2: Any, /) -> Any:
    if np.ndim(x1) != 1 or np.ndim(x2) != 1:
        raise ValueError(f"outer takes two vectors, not {np.ndim(x1)} and {np.ndim(x2)} axes")
    return np.outer(x1, x2)


@composed(np.linalg.vecdot)
def _linalg_vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return vecdot(x1, x2, axis=axis)


@composed(np.linalg.tensordot)
def _linalg_tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    return np.tensordot(x1, x2, axes=axes)


@composed(np.linalg.matmul)
def _linalg_matmul(x1: Any, x2: Any, /) -> Any:
    return matmul(x1, x2)
