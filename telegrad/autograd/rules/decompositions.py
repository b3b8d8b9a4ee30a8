"""Eigenvalues, singular values and QR, with their gradient rules.

Every rule is first a change to the factors and then its adjoint; M is the change of A as the
factors see it, `F` divides by the differences of what A's vectors belong to:

    A = V diag(w) V^H      M = V^H dA V      dw = diag(M)     dV = V (F o M)            F = 1 / (wj - wi)
    A = V diag(w) V^-1     M = V^-1 dA V     dw = diag(M)     dV = V (F o M), normalised
    A = U diag(s) V^H      M = U^H dA V      ds = re diag(M)  dU = U (F o (M s + s M^H)), F = 1 / (sj^2 - si^2)
    A = Q R                M = Q^H dA R^-1   dR = up(M + M^H) R                         up: diagonal halved

Vectors are determined up to a factor of length 1, and those of equal values up to a rotation. The
rules give the change that has no part of that freedom, which is right for losses that do not depend
on it. Where values are equal, the vectors have no derivative: a loss that uses vectors raises,
unless it has nothing to do with these.

The gradient of a Hermitian matrix is Hermitian, as PyTorch's is: NumPy reads one triangle,
and the items of both are taken to move together.

M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008); Z.-Q. Wan and S.-X. Zhang, "Automatic differentiation for complex valued
SVD" (2019); S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions
with application in optimum experimental design" (2010).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.extend import composed, numpy_function, primitive
from telegrad.autograd.ops import concatenate, swapaxes, where
from telegrad.autograd.tensor import Tensor
from telegrad.errors import AutogradError

__all__ = ["adjoint", "diagonal", "total"]

_OWN: Final = "own"


def adjoint(x: Any) -> Any:
    """Returns the conjugate transposes of matrices."""
    turned = swapaxes(x, axis1=-1, axis2=-2)
    return np.conjugate(turned) if x.dtype.kind == "c" else turned


def _array(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


def _rows_minus_columns(x: Any) -> Any:
    """Returns, for a square or oblong matrix, an array of its shape: row number minus column's."""
    array = _array(x)
    xp = namespace(array)
    rows, columns = array.shape[-2:]
    return xp.arange(rows)[:, None] - xp.arange(columns)


def diagonal(d: Any) -> Any:
    """Returns diagonal matrices."""
    square = d[..., None, :]
    n = d.shape[-1]
    xp = namespace(_array(d))
    return where(xp.arange(n)[:, None] == xp.arange(n), square, 0.0)


def total(parts: list[Any]) -> Any:
    """Returns the sum, None where there are none."""
    return sum(parts[1:], parts[0]) if parts else None


def _skew(x: Any) -> Any:
    return x - adjoint(x)


def _over(x: Any, divisor: Any) -> Any:
    """Returns x / divisor, 0 where the divisor is 0."""
    zero = _array(divisor) == 0
    return where(zero, 0.0, x / where(zero, 1.0, divisor))


def _differences(values: Any) -> Any:
    """Returns what is at [i, j] the j-th value minus the i-th."""
    return values[..., None, :] - values[..., :, None]


def _refuse_equal(name: str, values: Any, of_values: Any, *of_vectors: Any) -> None:
    """Checks that a loss of vectors has nothing to do with those of equal values.

    One that has may have a derivative, but not by way of the vectors, which have none: 0 would be
    as wrong as infinity. The values alone always have one.

    Raises:
        AutogradError: It has.
    """
    values = _array(values)
    equal = (_differences(values) == 0).sum(axis=-1) > 1
    _refuse(name, "are equal", equal, of_values, of_vectors)


def _refuse(name: str, what: str, found: Any, of_values: Any, of_vectors: tuple[Any, ...]) -> None:
    given = [(_array(g) != 0).any(axis=-2) for g in of_vectors if g is not None]
    given += [] if of_values is None else [_array(of_values) != 0]
    if any(bool((found & used).any()) for used in given):
        raise AutogradError(
            f"{name} has no gradient here: values {what}, so their vectors are not determined, and "
            "the loss uses vectors and these; use values alone, or add a small perturbation"
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
        # The length of each vector stays 1: what would change it does not count.
        lengths = np.real((np.conjugate(vectors) * of_vectors).sum(axis=-2, keepdims=True))
        turned = back @ of_vectors - (back @ vectors) * lengths
        inner = inner + _over(turned, np.conjugate(_differences(values)))
    return np.linalg.solve(back, inner @ back)


# -- singular values -------------------------------------------------------------------------------


def _basis(g: Any, x: Any, n: int) -> tuple[Any, Any]:
    """Returns the gradient of the first n vectors of a basis, with that of the others, and these.

    The others turn against the first ones as those do against them.
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
            _refuse("svd", "are 0", _array(s) == 0, g[1], (of_u, of_v))
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
    """Returns what comes of singular vectors `x` that turn into one another."""
    apart = _differences(s) * (s[..., None, :] + s[..., :, None])
    return _over(_skew(adjoint(x) @ g), apart)


def _phases(g: Any, x: Any, s: Any) -> Any:
    """Returns what comes of the phases of u and v where these do not turn together."""
    if x.dtype.kind != "c":
        return 0.0
    return diagonal(_over(1j * np.imag((np.conjugate(x) * g).sum(axis=-2)), 2 * s))


def _leaving(g: Any, x: Any, s: Any) -> Any:
    """Returns what comes of vectors `x` that leave the space that they span."""
    if x.shape[-2] == x.shape[-1]:
        return x * 0
    return _over(g - x @ (adjoint(x) @ g), s[..., None, :])


def _of_hermitian(g: Any, u: Any, s: Any, vh: Any) -> Any:
    """The rule of the singular values of a Hermitian matrix, which are those of its eigenvalues."""
    v = adjoint(vh)
    signs = np.sign(np.real((np.conjugate(u) * v).sum(axis=-2)))
    of_values = None if g[1] is None else g[1] * signs
    parts = [] if g[0] is None else [g[0]]
    parts += [] if g[2] is None else [adjoint(g[2]) * signs[..., None, :]]
    return _of_eigh((of_values, total(parts)), s * signs, u)


# -- QR --------------------------------------------------------------------------------------------


def _of_square(of_q: Any, of_r: Any, q: Any, r: Any) -> Any:
    """The rule of a matrix with as many columns as its rank."""
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
    # The columns beyond the square are rotated by the Q of the square.
    if of_r is None:
        left, right = None, a[..., m:] * 0
    else:
        left, right = of_r[..., :m], q @ of_r[..., m:]
        turned = a[..., m:] @ adjoint(of_r[..., m:])
        of_q = turned if of_q is None else of_q + turned
    return concatenate(_of_square(of_q, left, q, r[..., :m]), right, axis=-1)


# fmt: off
eigh  = numpy_function(np.linalg.eigh,  "a", outputs="values vectors", options={"UPLO": "L"}, complex_rule=_OWN, a=_of_eigh)
eig   = numpy_function(np.linalg.eig,   "a", outputs="values vectors", complex_rule=_OWN, a=_of_eig)
svd   = primitive("svd",  np.linalg.svd,  "a", outputs="u s vh", options={"full_matrices": True, "hermitian": False}, complex_rule=_OWN,
                  a=lambda g, u, s, vh, hermitian: _of_hermitian(g, u, s, vh) if hermitian else _of_svd(g, u, s, vh))
qr    = primitive("qr",   np.linalg.qr,   "a", outputs="q r", options={"mode": "reduced"}, complex_rule=_OWN, a=_of_qr)
# fmt: on


@composed(np.linalg.eigvalsh)
def _eigvalsh(a: Any, UPLO: Any = "L") -> Any:
    return np.linalg.eigh(a, UPLO)[0]


@composed(np.linalg.eigvals)
def _eigvals(a: Any) -> Any:
    return np.linalg.eig(a)[0]


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


@composed(np.linalg.svdvals)
def _svdvals(x: Any, /) -> Any:
    return svd(x, full_matrices=False)[1]


@composed(np.linalg.qr)
def _qr(a: Any, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r"):
        raise TypeError(f"qr of tensors knows the modes reduced, complete and r, not {mode!r}")
    return qr(a)[1] if mode == "r" else qr(a, mode=mode)
