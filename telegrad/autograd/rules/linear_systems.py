"""Inverses, solutions, determinants and Cholesky factors, batched, each with its gradient rule.

M. Giles, "An extended collection of matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008); for the Cholesky factor, I. Murray, "Differentiation of the
Cholesky decomposition" (2016).

The gradient of `cholesky` is symmetric (Hermitian), as PyTorch's is: NumPy reads one triangle, and
the items of both are taken to move together. `det` has its first and second derivatives at singular
matrices too, and there no third; `slogdet` has none there: it raises LinAlgError, as `inv` does.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.extend import Operation, composed, numpy_function, primitive
from telegrad.autograd.rules.decompositions import adjoint
from telegrad.autograd.tensor import Tensor
from telegrad.types import Array

__all__: list[str] = []

_ILL: Final = 1e6  # second derivatives by the inverse lose the square of this to rounding


def _turned(a: Any) -> Any:
    return a.swapaxes(-1, -2)


def _of_inverse(g: Any, y: Any) -> Any:
    turned = _turned(y)
    return -(turned @ g @ turned)


# -- solve ---------------------------------------------------------------------------------------


def _columns(b: Any, vector: bool) -> Any:
    return b.reshape((*b.shape, 1)) if vector else b


def _back(a: Any, g: Any, vector: bool) -> Any:
    return solve(_turned(a), _columns(g, vector))


def _of_matrix(g: Any, y: Any, a: Any) -> Any:
    vector = y.ndim < a.ndim
    return -(_back(a, g, vector) @ _turned(_columns(y, vector)))


def _of_right_side(g: Any, a: Any, vector: bool) -> Any:
    found = _back(a, g, vector)
    return found.reshape(found.shape[:-1]) if vector else found


def _solve_there(a: Any, b: Any) -> Any:
    """`solve` for CuPy, whose own broadcasts no batches, and takes vectors as NumPy 1 did."""
    xp = namespace(a, b)
    columns = b[..., None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    left = xp.broadcast_to(a, (*batch, *a.shape[-2:]))
    found = xp.linalg.solve(left, xp.broadcast_to(columns, (*batch, *columns.shape[-2:])))
    return found[..., 0] if b.ndim == 1 else found


# -- determinants --------------------------------------------------------------------------------

# The gradient of det is the matrix of cofactors C(A), a polynomial, whatever the rank of A. With
# A = U S V^H it is C(U) C(S) C(V^H), where C(Q) = det(Q) conj(Q) for unitary Q, and C(S) has at i, i
# the product of all s but s_i. Its derivative in direction H is, for diagonal S, at i, i the sum
# over k of P_ik H_kk, and at i, j -P_ij H_ji, where P_ij is the product of all s but s_i and s_j.


def _frame(a: Any) -> tuple[Any, Any, Any, Any]:
    left, values, right = np.linalg.svd(a)
    sign = np.linalg.det(left) * np.linalg.det(right)
    return left, values, right, sign[..., None, None]


def _products_without_one(values: Any) -> Any:
    xp = namespace(values)
    n = values.shape[-1]
    return xp.where(xp.eye(n, dtype=bool), 1.0, values[..., None, :]).prod(axis=-1)


def _products_without_two(values: Any) -> Any:
    xp = namespace(values)
    n = values.shape[-1]
    products = xp.zeros((*values.shape, n), dtype=values.dtype)
    for i in range(n):
        others = values.copy()
        others[..., i] = 1.0
        products[..., i, :] = _products_without_one(others)
        products[..., i, i] = 0.0
    return products


def _cofactors(a: Any) -> Array:
    left, values, right, sign = _frame(a)
    products = _products_without_one(values)
    found: Array = sign * (left.conj() * products[..., None, :]) @ right.conj()
    return found


def _cofactors_slope(g: Any, a: Any) -> Array:
    left, values, right, sign = _frame(a)
    products = _products_without_two(values)
    inside = left.swapaxes(-1, -2).conj() @ g @ right.swapaxes(-1, -2).conj()
    eye = namespace(a).eye(a.shape[-1])
    diagonal = (products @ (inside * eye).sum(axis=-1)[..., None]) * eye
    rotated = diagonal - products * inside.swapaxes(-1, -2)
    found: Array = sign * left.conj() @ rotated @ right.conj()
    return found


def _of_determinant(g: Any, y: Any, a: Any) -> Any:
    g, y = (x.reshape((*x.shape, 1, 1)) for x in (g, y))
    if not (y == 0).any():
        inverse = np.linalg.inv(a)
        if _is_well_conditioned(a, inverse):
            return (g * y) * _turned(inverse)
    return g * cofactors(a)


def _is_well_conditioned(a: Any, inverse: Any) -> bool:
    if not math.prod(a.shape):
        return True
    a, inverse = (x.data if isinstance(x, Tensor) else x for x in (a, inverse))
    xp = namespace(a)
    sizes = [xp.abs(x).max(axis=(-2, -1)) for x in (a, inverse)]
    return bool((sizes[0] * sizes[1] < _ILL).all())


def _of_sign_and_logarithm(g: Any, sign: Any, a: Any) -> Any:
    of_sign, of_logarithm = g
    weight = of_logarithm
    if a.dtype.kind == "c" and of_sign is not None:
        turn = np.imag(of_sign * np.conjugate(sign)) * 1j
        weight = turn if weight is None else weight + turn
    if weight is None:
        return None  # the sign of a real determinant is constant
    return weight.reshape((*weight.shape, 1, 1)) * adjoint(np.linalg.inv(a))


# -- Cholesky ------------------------------------------------------------------------------------


def _lower_half(a: Any) -> Array:
    """Returns the lower triangle of `a` with half its diagonal: itself its own gradient."""
    items = namespace(a).arange(a.shape[-1])
    # 1 below the diagonal, 0.5 on it, 0 above.
    mask = np.heaviside(items[:, None] - items, 0.5).astype(a.real.dtype)
    half: Array = a * mask
    return half


def _of_factor(g: Any, y: Any, upper: bool) -> Any:
    factor, g = (adjoint(y), adjoint(g)) if upper else (y, g)
    inverse = np.linalg.inv(factor)
    half = adjoint(inverse) @ lower_half(adjoint(factor) @ g) @ inverse
    return 0.5 * (half + adjoint(half))


def _cholesky_there(a: Any, upper: bool = False) -> Any:
    """`cholesky` for CuPy, whose own knows the lower factor only."""
    factor = np.linalg.cholesky(a.swapaxes(-1, -2).conj() if upper else a)
    return factor.swapaxes(-1, -2).conj() if upper else factor


solve: Operation  # declared, as rules name what stands below
slope: Operation
lower_half: Operation
_H: Final = "holomorphic"

# fmt: off
inv        = numpy_function(np.linalg.inv,      "a",   complex_rule=_H, a=_of_inverse)
solve      = numpy_function(np.linalg.solve,    "a b", kernels={"cupy": _solve_there}, complex_rule=_H, a=_of_matrix, b=lambda g, a, shape: _of_right_side(g, a, len(shape) == 1))
det        = numpy_function(np.linalg.det,      "a",   complex_rule=_H, a=_of_determinant)
slogdet    = numpy_function(np.linalg.slogdet,  "a",   complex_rule="own", outputs="sign logabsdet", a=_of_sign_and_logarithm)
cholesky   = numpy_function(np.linalg.cholesky, "a",   kernels={"cupy": _cholesky_there}, complex_rule="own", options={"upper": False}, a=_of_factor)
lower_half = primitive("lower_half", _lower_half, "a", complex_rule="own", a=lambda g: lower_half(g))
slope      = primitive("cofactors_slope", _cofactors_slope, "g a", complex_rule=_H, g=lambda g, a: slope(g, a))
cofactors  = primitive("cofactors", _cofactors, "a",   complex_rule=_H, a=lambda g, a: slope(g, a))
# fmt: on


@composed(np.linalg.tensorinv)
def _tensorinv(a: Any, ind: int = 2) -> Any:
    if ind <= 0:
        raise ValueError(f"ind must be positive, not {ind}")
    rows = math.prod(a.shape[ind:])
    inverse = np.linalg.inv(np.reshape(a, (rows, -1)))
    return np.reshape(inverse, (*a.shape[ind:], *a.shape[:ind]))


@composed(np.linalg.tensorsolve)
def _tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    if axes is not None:
        moved = [k % np.ndim(a) for k in axes]
        a = np.transpose(a, [*[k for k in range(np.ndim(a)) if k not in moved], *moved])
    shape = np.shape(a)[np.ndim(b) - np.ndim(a) :] if np.ndim(a) > np.ndim(b) else ()
    found = np.linalg.solve(np.reshape(a, (math.prod(shape), -1)), np.ravel(b))
    return np.reshape(found, shape)


@composed(np.linalg.cond)
def _cond(x: Any, p: Any = None) -> Any:
    order = 2 if p is None else p
    if order in (2, -2):
        return np.linalg.matrix_norm(x, ord=order) / np.linalg.matrix_norm(x, ord=-order)
    return np.linalg.matrix_norm(x, ord=p) * np.linalg.matrix_norm(np.linalg.inv(x), ord=p)
