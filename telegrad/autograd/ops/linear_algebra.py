"""Eigenvalues, singular values, QR, inverses, least squares, norms and sparse products.

Each rule below first describes the change of the factors, and the code computes its adjoint. M is
the change of A in the basis of the factors. F divides by the differences of the values of A:

    A = V diag(w) V^H    M = V^H dA V     dw = diag(M)     dV = V (F o M)   F = 1 / (wj - wi)
    A = V diag(w) V^-1   M = V^-1 dA V    dw = diag(M)     dV = V (F o M), normalised
    A = U diag(s) V^H    M = U^H dA V     ds = re diag(M)  dU = U (F o (M s + s M^H))
                                                           F = 1 / (sj^2 - si^2)
    A = Q R              M = Q^H dA R^-1  dR = up(M + M^H) R      up: diagonal halved

Vectors are determined up to a factor of length 1; the vectors of equal values are determined up to
a rotation. The rules return the change without that freedom, which is right for losses that do not
depend on it. If values are equal, their vectors have no derivative. A loss that uses vectors then
raises, unless it does not depend on the equal values and their vectors.

The gradient of a Hermitian matrix is Hermitian, as in PyTorch: NumPy reads one triangle, and the
rules treat the items of both triangles as moving together.

M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008); Z.-Q. Wan and S.-X. Zhang, "Automatic differentiation for complex valued
SVD" (2019); S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions
with application in optimum experimental design" (2010).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace, sparse_product
from telegrad.autograd.extend import Operation, composed, constants, numpy_function, primitive
from telegrad.autograd.ops.elementwise import absolute, sign, where
from telegrad.autograd.ops.shape import axes_of, concatenate, kept, reshape, to_winners, turned
from telegrad.autograd.tensor.tensor import array_of
from telegrad.errors import AutogradError

_OWN: Final = "own"


def adjoint(x: Any) -> Any:
    """Returns the conjugate transposes of matrices."""
    return np.conjugate(turned(x)) if x.dtype.kind == "c" else turned(x)


def _rows_minus_columns(x: Any) -> Any:
    """Returns an array in the shape of a matrix whose item [i, j] is i - j."""
    array = array_of(x)
    xp = namespace(array)
    rows, columns = array.shape[-2:]
    return xp.arange(rows)[:, None] - xp.arange(columns)


def diagonal(d: Any) -> Any:
    """Returns diagonal matrices."""
    square = d[..., None, :]
    n = d.shape[-1]
    xp = namespace(array_of(d))
    return where(xp.arange(n)[:, None] == xp.arange(n), square, 0.0)


def total(parts: list[Any]) -> Any:
    """Returns the sum of the parts; None if there are none."""
    return sum(parts[1:], parts[0]) if parts else None


def _skew(x: Any) -> Any:
    return x - adjoint(x)


def _over(x: Any, divisor: Any) -> Any:
    """Returns `x / divisor`, but 0 where the divisor is 0."""
    zero = array_of(divisor) == 0
    return where(zero, 0.0, x / where(zero, 1.0, divisor))


def _differences(values: Any) -> Any:
    """Returns the matrix whose item [i, j] is the j-th value minus the i-th value."""
    return values[..., None, :] - values[..., :, None]


def _refuse_equal(name: str, values: Any, of_values: Any, *of_vectors: Any) -> None:
    """Checks that a loss of vectors does not depend on equal values or on their vectors.

    Such a loss may have a derivative, but not by way of the vectors, which have none: a gradient of
    0 would be as wrong as infinity. A loss of the values alone always has a gradient.

    Raises:
        AutogradError: The loss depends on equal values or on their vectors.
    """
    values = array_of(values)
    equal = (_differences(values) == 0).sum(axis=-1) > 1
    _refuse(name, "are equal", equal, of_values, of_vectors)


def _refuse(name: str, what: str, found: Any, of_values: Any, of_vectors: tuple[Any, ...]) -> None:
    given = [(array_of(g) != 0).any(axis=-2) for g in of_vectors if g is not None]
    given += [] if of_values is None else [array_of(of_values) != 0]
    if any(bool((found & used).any()) for used in given):
        raise AutogradError(
            f"{name} has no gradient here: values {what}, so their vectors are not determined, but "
            "the loss uses vectors and these values; use values only, or add a small perturbation"
        )


# -- eigenvalues -----------------------------------------------------------------------------------


def _of_eigh(g: Any, values: Any, vectors: Any) -> Any:
    of_values, of_vectors = g
    back = adjoint(vectors)
    inner = 0.0 if of_values is None else diagonal(of_values)
    if of_vectors is not None:
        _refuse_equal("eigh", values, of_values, of_vectors)
        inner = inner + _over(_skew(back @ of_vectors) * 0.5, _differences(values))
    return vectors @ inner @ back


def _of_eig(g: Any, values: Any, vectors: Any) -> Any:
    of_values, of_vectors = g
    back = adjoint(vectors)
    inner = 0.0 if of_values is None else diagonal(of_values)
    if of_vectors is not None:
        _refuse_equal("eig", values, of_values, of_vectors)
        # Each vector keeps length 1, so the part of the gradient along the vector is dropped.
        lengths = np.real((np.conjugate(vectors) * of_vectors).sum(axis=-2, keepdims=True))
        turned = back @ of_vectors - (back @ vectors) * lengths
        inner = inner + _over(turned, np.conjugate(_differences(values)))
    return np.linalg.solve(back, inner @ back)


# -- singular values -------------------------------------------------------------------------------


def _basis(g: Any, x: Any, n: int) -> tuple[Any, Any]:
    """Returns the gradient of the first n vectors of a basis, and these vectors.

    If a first vector turns toward one of the others, that one turns back, so the gradient of the
    others is part of the result.
    """
    first, others = x[..., :n], x[..., n:]
    if g is None or not others.size:
        return g, first
    return g[..., :n] - others @ (adjoint(g[..., n:]) @ first), first


def _of_svd(g: Any, u: Any, s: Any, vh: Any) -> Any:
    n = s.shape[-1]
    of_u, u = _basis(g[0], u, n)
    of_v, v = _basis(None if g[2] is None else adjoint(g[2]), adjoint(vh), n)
    if of_u is not None or of_v is not None:
        _refuse_equal("svd", s, g[1], of_u, of_v)
        if u.shape != v.shape or u.dtype.kind == "c":
            _refuse("svd", "are 0", array_of(s) == 0, g[1], (of_u, of_v))
    row, column = s[..., None, :], s[..., :, None]
    inner = 0.0 if g[1] is None else diagonal(g[1])
    around: Any = 0.0
    if of_u is not None:
        inner = inner + _turning(of_u, u, s) * row + _phases(of_u, u, s)
        around = around + _leaving(of_u, u, s) @ adjoint(v)
    if of_v is not None:
        inner = inner + column * _turning(of_v, v, s) - _phases(of_v, v, s)
        around = around + u @ adjoint(_leaving(of_v, v, s))
    return u @ inner @ adjoint(v) + around


def _turning(g: Any, x: Any, s: Any) -> Any:
    """Returns the contribution of singular vectors `x` that turn into one another."""
    apart = _differences(s) * (s[..., None, :] + s[..., :, None])
    return _over(_skew(adjoint(x) @ g), apart)


def _phases(g: Any, x: Any, s: Any) -> Any:
    """Returns the contribution of the phases of u and v, as far as they do not turn together."""
    if x.dtype.kind != "c":
        return 0.0
    return diagonal(_over(1j * np.imag((np.conjugate(x) * g).sum(axis=-2)), 2 * s))


def _leaving(g: Any, x: Any, s: Any) -> Any:
    """Returns the contribution of vectors `x` that leave the space that they span."""
    if x.shape[-2] == x.shape[-1]:
        return x * 0
    return _over(g - x @ (adjoint(x) @ g), s[..., None, :])


def _of_hermitian(g: Any, u: Any, s: Any, vh: Any) -> Any:
    """Applies the rule of eigenvalues to the singular values of a Hermitian matrix."""
    v = adjoint(vh)
    signs = np.sign(np.real((np.conjugate(u) * v).sum(axis=-2)))
    of_values = None if g[1] is None else g[1] * signs
    parts = [] if g[0] is None else [g[0]]
    parts += [] if g[2] is None else [adjoint(g[2]) * signs[..., None, :]]
    return _of_eigh((of_values, total(parts)), s * signs, u)


# -- QR --------------------------------------------------------------------------------------------


def _of_square(of_q: Any, of_r: Any, q: Any, r: Any) -> Any:
    """Returns the gradient of a matrix with as many columns as its rank."""
    place = _rows_minus_columns(r)
    weight = 0.0
    if of_r is not None:
        weight = weight + of_r @ adjoint(r)
    if of_q is not None:
        weight = weight - adjoint(q) @ of_q
    upper = where(place < 0, weight, where(place == 0, weight * 0.5, 0.0))
    whole = q @ (upper + adjoint(upper))
    if of_q is not None:
        whole = whole + of_q
    return adjoint(np.linalg.solve(r, adjoint(whole)))


def _of_qr(g: Any, a: Any, q: Any, r: Any) -> Any:
    m, n = a.shape[-2:]
    k = min(m, n)
    of_q, q = _basis(g[0], q, k)
    of_r, r = (None if g[1] is None else g[1][..., :k, :]), r[..., :k, :]
    if n <= m:
        return _of_square(of_q, of_r, q, r)
    # The Q of the square part rotates the remaining columns.
    if of_r is None:
        left, right = None, a[..., m:] * 0
    else:
        left, right = of_r[..., :m], q @ of_r[..., m:]
        turned = a[..., m:] @ adjoint(of_r[..., m:])
        of_q = turned if of_q is None else of_q + turned
    return concatenate(_of_square(of_q, left, q, r[..., :m]), right, axis=-1)


# fmt: off
eigh  = numpy_function(np.linalg.eigh, "a", outputs="values vectors", options={"UPLO": "L"},
                       complex_rule=_OWN, a=_of_eigh)
eig   = numpy_function(np.linalg.eig,   "a", outputs="values vectors", complex_rule=_OWN, a=_of_eig)
svd   = primitive(
    "svd", np.linalg.svd, "a", outputs="u s vh",
    options={"full_matrices": True, "hermitian": False}, complex_rule=_OWN,
    a=lambda g, u, s, vh, hermitian:
        _of_hermitian(g, u, s, vh) if hermitian else _of_svd(g, u, s, vh))
qr    = primitive("qr", np.linalg.qr, "a", outputs="q r", options={"mode": "reduced"},
                  complex_rule=_OWN, a=_of_qr)
# fmt: on


composed(np.linalg.eigvalsh)(lambda a, UPLO="L": np.linalg.eigh(a, UPLO)[0])
composed(np.linalg.eigvals)(lambda a: np.linalg.eig(a)[0])
composed(np.linalg.svdvals)(lambda x, /: svd(x, full_matrices=False)[1])


@composed(np.linalg.svd)
def _svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
) -> Any:
    kind = {"hermitian": True} if hermitian else {}
    if not compute_uv:
        return svd(a, full_matrices=False, **kind)[1]
    return svd(a, full_matrices=full_matrices, **kind)


@composed(np.linalg.qr)
def _qr(a: Any, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r"):
        raise TypeError(f"qr of tensors knows the modes reduced, complete and r, not {mode!r}")
    return qr(a)[1] if mode == "r" else qr(a, mode=mode)


# -- inverses, solutions, determinants and Cholesky factors, batched -----------------------------
#
# M. Giles, "An extended collection of matrix derivative results for forward and reverse mode
# algorithmic differentiation" (2008); for the Cholesky factor, I. Murray, "Differentiation of the
# Cholesky decomposition" (2016).
#
# The gradient of `cholesky` is symmetric (Hermitian), as in PyTorch: NumPy reads one triangle, and
# the rule treats the items of both triangles as moving together. At singular matrices, `det` has a
# first and a second derivative, but no third. `slogdet` has none there and raises LinAlgError, as
# `inv` does.

_ILL: Final = 1e6  # with the inverse, second derivatives lose the square of this to rounding


def _of_inverse(g: Any, y: Any) -> Any:
    back = turned(y)
    return -(back @ g @ back)


# -- solve ---------------------------------------------------------------------------------------


def _columns(b: Any, vector: bool) -> Any:
    return b.reshape((*b.shape, 1)) if vector else b


def _back(a: Any, g: Any, vector: bool) -> Any:
    return solve(turned(a), _columns(g, vector))


def _of_matrix(g: Any, y: Any, a: Any) -> Any:
    vector = y.ndim < a.ndim
    return -(_back(a, g, vector) @ turned(_columns(y, vector)))


def _of_right_side(g: Any, a: Any, vector: bool) -> Any:
    found = _back(a, g, vector)
    return found.reshape(found.shape[:-1]) if vector else found


def _solve_there(a: Any, b: Any) -> Any:
    """Computes `solve` for CuPy, which does not broadcast batches and treats vectors as NumPy 1."""
    xp = namespace(a, b)
    columns = b[..., None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    left = xp.broadcast_to(a, (*batch, *a.shape[-2:]))
    found = xp.linalg.solve(left, xp.broadcast_to(columns, (*batch, *columns.shape[-2:])))
    return found[..., 0] if b.ndim == 1 else found


# -- determinants --------------------------------------------------------------------------------

# The gradient of det is the matrix of cofactors C(A), a polynomial of A for any rank of A. With
# A = U S V^H it is C(U) C(S) C(V^H). For unitary Q, C(Q) = det(Q) conj(Q). C(S) is diagonal; at i,
# i it has the product of all s but s_i.
#
# For diagonal S, the derivative of C in direction H uses P_ij, the product of all s but s_i and
# s_j. At i, i it is the sum over k of P_ik H_kk; at i, j it is -P_ij H_ji.


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


def _cofactors(a: Any) -> Any:
    left, values, right, sign = _frame(a)
    products = _products_without_one(values)
    return sign * (left.conj() * products[..., None, :]) @ right.conj()


def _cofactors_slope(g: Any, a: Any) -> Any:
    left, values, right, sign = _frame(a)
    products = _products_without_two(values)
    inside = left.swapaxes(-1, -2).conj() @ g @ right.swapaxes(-1, -2).conj()
    eye = namespace(a).eye(a.shape[-1])
    diagonal = (products @ (inside * eye).sum(axis=-1)[..., None]) * eye
    rotated = diagonal - products * inside.swapaxes(-1, -2)
    return sign * left.conj() @ rotated @ right.conj()


def _of_determinant(g: Any, y: Any, a: Any) -> Any:
    g, y = (x.reshape((*x.shape, 1, 1)) for x in (g, y))
    if not (y == 0).any():
        inverse = np.linalg.inv(a)
        if _is_well_conditioned(a, inverse):
            return (g * y) * turned(inverse)
    return g * cofactors(a)


def _is_well_conditioned(a: Any, inverse: Any) -> bool:
    if not math.prod(a.shape):
        return True
    a, inverse = array_of(a), array_of(inverse)
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


def _lower_half(a: Any) -> Any:
    """Returns the lower triangle of `a` with half its diagonal; this map is its own transpose."""
    items = namespace(array_of(a)).arange(a.shape[-1])
    # The mask is 1 below the diagonal, 0.5 on it, 0 above.
    mask = np.heaviside(items[:, None] - items, 0.5).astype(a.real.dtype)
    return a * mask


def _of_factor(g: Any, y: Any, upper: bool) -> Any:
    factor, g = (adjoint(y), adjoint(g)) if upper else (y, g)
    inverse = np.linalg.inv(factor)
    half = adjoint(inverse) @ _lower_half(adjoint(factor) @ g) @ inverse
    return 0.5 * (half + adjoint(half))


def _cholesky_there(a: Any, upper: bool = False) -> Any:
    """Computes `cholesky` for CuPy, which can compute only the lower factor."""
    factor = np.linalg.cholesky(a.swapaxes(-1, -2).conj() if upper else a)
    return factor.swapaxes(-1, -2).conj() if upper else factor


_H: Final = "holomorphic"

# fmt: off
inv        = numpy_function(np.linalg.inv,      "a",   complex_rule=_H, a=_of_inverse)
solve: Operation = numpy_function(
    np.linalg.solve, "a b", kernels={"cupy": _solve_there}, complex_rule=_H, a=_of_matrix,
    b=lambda g, a, shape: _of_right_side(g, a, len(shape) == 1))
det        = numpy_function(np.linalg.det,      "a",   complex_rule=_H, a=_of_determinant)
slogdet    = numpy_function(np.linalg.slogdet, "a", complex_rule="own", outputs="sign logabsdet",
                            a=_of_sign_and_logarithm)
cholesky   = numpy_function(np.linalg.cholesky, "a", kernels={"cupy": _cholesky_there},
                            complex_rule="own", options={"upper": False}, a=_of_factor)
slope: Operation = primitive("cofactors_slope", _cofactors_slope, "g a", complex_rule=_H,
                             g=lambda g, a: slope(g, a))
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


# -- pseudo-inverses and least squares -----------------------------------------------------------
#
# G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares
# problems whose variables separate" (1973). The gradient is valid for changes that keep the rank.
# The gradient of a Hermitian matrix is Hermitian.


def _hermitian(a: Any) -> Any:
    """Returns the Hermitian matrix that has the lower triangle of `a`."""
    below = np.tril(a, -1)
    return below + adjoint(below) + np.real(np.tril(np.triu(a)))


def _of_pinv(g: Any, a: Any, y: Any) -> Any:
    back, turned = adjoint(g), adjoint(y)
    inside = turned @ g @ turned
    left = back @ y @ turned
    right = turned @ y @ back
    return left - a @ (y @ left) + right - (right @ y) @ a - inside


def _of_hermitian_pinv(g: Any, a: Any, y: Any) -> Any:
    found = _of_pinv(g, _hermitian(a), y)
    return (found + adjoint(found)) * 0.5


def _as_columns(x: Any) -> Any:
    return reshape(x, to=(*x.shape, 1)) if x.ndim == 1 else x


def _inverse(a: Any, rcond: Any) -> Any:
    """Returns the pseudo-inverse with which `lstsq` solves."""
    eps = float(np.finfo(a.dtype).eps)
    if rcond is None:
        rcond = eps * max(a.shape)
    return np.linalg.pinv(a, eps if rcond == -1 else rcond)


def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    # Passes `rcond` on always, because CuPy warns if it is missing.
    return np.linalg.lstsq(a, b, rcond)


def _of_system(g: Any, a: Any, b: Any, x: Any, rcond: Any) -> Any:
    """Returns the gradient of the matrix of least squares."""
    x, b = _as_columns(x), _as_columns(b)
    rest = b - a @ x
    parts = []
    if g[0] is not None:
        of_x, inverse = _as_columns(g[0]), _inverse(a, rcond)
        back = adjoint(inverse)
        of_b = back @ of_x
        free = of_x - inverse @ (a @ of_x)
        parts += [
            rest @ adjoint(inverse @ of_b),
            -of_b @ adjoint(x),
            back @ x @ adjoint(free),
        ]
    if g[1] is not None and g[1].size:
        parts += [-2 * (rest * g[1]) @ adjoint(x)]
    if g[3] is not None:
        u, _, vh = np.linalg.svd(a, full_matrices=False)
        parts += [u @ diagonal(g[3]) @ vh]
    return total(parts)


def _of_target(g: Any, a: Any, b: Any, x: Any, rcond: Any) -> Any:
    """Returns the gradient of the right sides of least squares."""
    parts = []
    if g[0] is not None:
        parts += [adjoint(_inverse(a, rcond)) @ g[0]]
    if g[1] is not None and g[1].size:
        parts += [2 * (b - a @ x) * g[1]]
    return total(parts)


# fmt: off
pinv  = numpy_function(
    np.linalg.pinv, "a", options={"rcond": None, "hermitian": False, "rtol": None},
    complex_rule=_OWN,
    a=lambda g, a, y, hermitian: _of_hermitian_pinv(g, a, y) if hermitian else _of_pinv(g, a, y))
lstsq = numpy_function(np.linalg.lstsq, "a b", outputs="x residuals rank s",
                       options={"rcond": None}, complex_rule=_OWN, kernels={"cupy": _lstsq},
                       a=_of_system, b=_of_target)
# fmt: on


# -- norms of vectors and matrices ----------------------------------------------------------------
#
# At a kink of a norm, the gradient is one-sided or shared. It is 0 at the zero vector and for items
# that are 0. Items or singular values of equal size share it equally. Order 0 is a count, so it is
# constant.


def _to_extreme(g: Any, sizes: Any, axis: Any, order: float) -> Any:
    # The extreme of `sizes`, not the norm, which is computed differently and may differ in its last
    # digit.
    extreme = np.max if order > 0 else np.min
    return to_winners(g, extreme(sizes, axis=axis, keepdims=True), sizes, axis)


def _of_vector(g: Any, y: Any, x: Any, order: Any, axis: Any) -> Any:
    """Returns the gradient of a norm over all items of `axis`, which is one or several axes."""
    if order == 0:
        return None
    if abs(order) == math.inf:
        return sign(x) * _to_extreme(g, absolute(x), axis, order)
    g, y = kept(g, x.shape, axis), kept(y, x.shape, axis)
    if order == 1:
        return g * sign(x)
    if order == 2:
        return x * _over(g, y)
    size = absolute(x)
    # Fractions of the norm, so that no power overflows. If an item is 0, sign(x) is 0.
    zero = (size == 0) | (y == 0)
    ratio = where(zero, 1.0, size / where(y == 0, 1.0, y))
    return where(zero, 0.0, g * sign(x) * ratio ** (order - 1))


def _of_matrix_norm(g: Any, y: Any, x: Any, order: Any, axes: tuple[int, int]) -> Any:
    """Returns the gradient of a norm of the matrices in `axes`."""
    if order is None or order == "fro":
        return _of_vector(g, y, x, 2, axes)
    if order in (1, -1, math.inf, -math.inf):
        summed, other = axes if abs(order) == 1 else axes[::-1]
        sums = np.sum(absolute(x), axis=summed, keepdims=True)
        return sign(x) * _to_extreme(kept(g, x.shape, axes), sums, other, order)
    matrices = np.moveaxis(x, axes, (-2, -1))
    left, values, right = np.linalg.svd(matrices, full_matrices=False)
    g = _of_values(g, x, axes)
    weights = g if order == "nuc" else _to_extreme(g, values, -1, order)
    weights = where(values == 0, 0.0, weights)
    return np.moveaxis(left * weights[..., None, :] @ right, (-2, -1), axes)


def _of_values(g: Any, x: Any, axes: tuple[int, int]) -> Any:
    """Adds an axis for the singular values to an array of one number per matrix."""
    return reshape(g, to=(*[n for k, n in enumerate(x.shape) if k not in axes], 1))


def _of_norm(g: Any, y: Any, x: Any, order: Any, axis: Any) -> Any:
    axes = axes_of(axis, x.ndim)
    matrix = len(axes) == 2 and (order is not None or axis is not None)
    if matrix:
        return _of_matrix_norm(g, y, x, order, (axes[0], axes[1]))
    return _of_vector(g, y, x, 2 if order is None else order, axes)


# CuPy before version 14 has neither of these two functions.


def _vector_norm_there(
    x: Any,
    axis: Any = None,
    keepdims: bool = False,
    ord: Any = 2,  # noqa: A002  NumPy's name
) -> Any:
    axes = axes_of(axis, x.ndim)
    rest = tuple([k for k in range(x.ndim) if k not in axes])
    size = math.prod([x.shape[k] for k in axes])
    flat = x.transpose((*rest, *axes)).reshape((*[x.shape[k] for k in rest], size))
    found = np.linalg.norm(flat, ord, -1)
    return kept(found, x.shape, axes) if keepdims else found


def _matrix_norm_there(x: Any, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002
    return np.linalg.norm(x, ord, (-2, -1), keepdims)


_ANY: Final = {"ord": None, "axis": None, "keepdims": False}

# fmt: off
norm        = numpy_function(
    np.linalg.norm, "x", complex_rule="own", options=_ANY,
    x=lambda g, y, x, ord, axis: _of_norm(g, y, x, ord, axis))  # noqa: A006
vector_norm = numpy_function(
    np.linalg.vector_norm, "x", kernels={"cupy": _vector_norm_there}, complex_rule="own",
    options={**_ANY, "ord": 2},
    x=lambda g, y, x, ord, axis: _of_vector(g, y, x, ord, axes_of(axis, x.ndim)))  # noqa: A006
matrix_norm = numpy_function(
    np.linalg.matrix_norm, "x", kernels={"cupy": _matrix_norm_there}, complex_rule="own",
    options={"ord": "fro", "keepdims": False},
    x=lambda g, y, x, ord: _of_matrix_norm(g, y, x, ord, (x.ndim - 2, x.ndim - 1)))  # noqa: A006
# fmt: on

constants(np.linalg.matrix_rank)


# -- products with sparse matrices, which are constants without a gradient -----------------------


# fmt: off
product: Operation = primitive(
    "sparse_product", sparse_product, "dense", stands_for=(sparse_product,), complex_rule=_H,
    options={"matrix": None}, dense=lambda g, matrix: product(g, matrix=matrix.T))
# fmt: on
