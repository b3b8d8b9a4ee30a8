"""Pseudo-inverses and least squares, with their gradient rules.

G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares
problems whose variables separate" (1973). The gradient is for changes that keep the rank; that of a
Hermitian matrix is Hermitian.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import numpy_function
from telegrad.autograd.ops import reshape
from telegrad.autograd.rules.decompositions import adjoint, diagonal, total

__all__: list[str] = []

_OWN: Final = "own"


def _hermitian(a: Any) -> Any:
    """Returns the Hermitian matrix whose lower triangle stands in `a`."""
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


def _columns(x: Any) -> Any:
    return reshape(x, to=(*x.shape, 1)) if x.ndim == 1 else x


def _inverse(a: Any, rcond: Any) -> Any:
    """Returns the pseudo-inverse with which `lstsq` solves."""
    eps = float(np.finfo(a.dtype).eps)
    if rcond is None:
        rcond = eps * max(a.shape)
    return np.linalg.pinv(a, eps if rcond == -1 else rcond)


def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    # CuPy warns where `rcond` is not given.
    return np.linalg.lstsq(a, b, rcond)


def _of_system(g: Any, a: Any, b: Any, x: Any, rcond: Any) -> Any:
    """The rule of the matrix of least squares."""
    x, b = _columns(x), _columns(b)
    rest = b - a @ x
    parts = []
    if g[0] is not None:
        of_x, inverse = _columns(g[0]), _inverse(a, rcond)
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
    """The rule of the right sides of least squares."""
    parts = []
    if g[0] is not None:
        parts += [adjoint(_inverse(a, rcond)) @ g[0]]
    if g[1] is not None and g[1].size:
        parts += [2 * (b - a @ x) * g[1]]
    return total(parts)


# fmt: off
pinv  = numpy_function(np.linalg.pinv, "a", options={"rcond": None, "hermitian": False, "rtol": None}, complex_rule=_OWN, a=lambda g, a, y, hermitian: _of_hermitian_pinv(g, a, y) if hermitian else _of_pinv(g, a, y))
lstsq = numpy_function(np.linalg.lstsq, "a b", outputs="x residuals rank s", options={"rcond": None}, complex_rule=_OWN, kernels={"cupy": _lstsq},
                       a=_of_system, b=_of_target)
# fmt: on
