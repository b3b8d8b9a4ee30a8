"""Polynomials, as vectors of coefficients from the highest power to the constant."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np

from telegrad.arrays import array_beside
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import astype, concatenate, reshape, stack
from telegrad.autograd.rules.stacking import alike
from telegrad.autograd.tensor import Tensor

__all__: list[str] = []


def _tensors(*given: Any) -> list[Any]:
    """Returns Tensors of at least one axis, on the device of the first one that is a Tensor."""
    return [reshape(x, to=(1,)) if x.ndim == 0 else x for x in alike(given)]


@composed(np.polyval)
def _polyval(p: Any, x: Any) -> Any:
    # W. G. Horner's scheme.
    if not isinstance(x, Tensor):
        x = array_beside(x, p.data)
    y = x * 0
    for coefficient in p if isinstance(p, Tensor) else array_beside(p, x.data):
        y = y * x + coefficient
    return y


def _aligned(combine: Any, a1: Any, a2: Any) -> Any:
    """Combines the coefficients of equal powers."""
    parts = _tensors(a1, a2)
    n = max(len(x) for x in parts)
    padded = [np.pad(x, (n - len(x), 0)) if len(x) < n else x for x in parts]
    return combine(*padded)


@composed(np.polyadd)
def _polyadd(a1: Any, a2: Any) -> Any:
    return _aligned(operator.add, a1, a2)


@composed(np.polysub)
def _polysub(a1: Any, a2: Any) -> Any:
    return _aligned(operator.sub, a1, a2)


def _without_leading_zeros(p: Any) -> Any:
    present = np.flatnonzero(p.data)
    return p[int(present[0]) :] if len(present) else p[:1] * 0


@composed(np.polymul)
def _polymul(a1: Any, a2: Any) -> Any:
    return np.convolve(*(_without_leading_zeros(x) for x in _tensors(a1, a2)))


@composed(np.polyder)
def _polyder(p: Any, m: Any = 1) -> Any:
    if m < 0:
        raise ValueError(f"a polynomial is differentiated 0 times or more often, not {m}")
    for _ in range(int(m)):
        p = p[:-1] * _powers(p, 0)
    return p


@composed(np.polyint)
def _polyint(p: Any, m: Any = 1, k: Any = None) -> Any:
    if m < 0:
        raise ValueError(f"a polynomial is integrated 0 times or more often, not {m}")
    p, k = _tensors(p, 0.0 if k is None else k)
    if len(k) not in (1, m) and len(k) < m:
        raise ValueError(f"{len(k)} constants are given for {m} integrations")
    for i in range(int(m)):
        p = concatenate(p / _powers(p, 1), k[i : i + 1] if len(k) > 1 else k)
    return p


def _powers(p: Any, more: int) -> Any:
    """Returns the powers of the coefficients but the last one, or, with 1 more, those after."""
    powers = np.arange(len(p) - 1 + more, 0, -1)
    return array_beside(powers.tolist(), p.data)


@composed(np.vander)
def _vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    count = len(x) if N is None else N
    x = astype(x, dtype=np.promote_types(x.dtype, int))
    columns = [x**0, x]
    for _ in range(count - 2):
        columns.append(columns[-1] * x)
    columns = columns[:count] if increasing else columns[:count][::-1]
    return stack(*columns, axis=-1) if columns else reshape(x[:0], to=(len(x), 0))


@composed(np.polydiv)
def _polydiv(u: Any, v: Any) -> Any:
    rest, v = (x + 0.0 for x in _tensors(u, v))
    dtype = np.result_type(rest.dtype, v.dtype)
    rest, v = (astype(x, dtype=dtype) for x in (rest, v))
    steps = len(rest) - len(v) + 1
    quotient = []
    for k in range(steps):
        quotient.append(rest[k : k + 1] / v[:1])
        rest = rest - np.pad(quotient[-1] * v, (k, steps - 1 - k))
    present = np.flatnonzero(~np.isclose(rest.data, 0.0, rtol=1e-14))
    first = int(present[0]) if len(present) else len(rest) - 1
    return concatenate(*quotient) if quotient else v[:1] * 0, rest[first:]


@composed(np.polyfit)
def _polyfit(
    x: Any,
    y: Any,
    deg: Any,
    rcond: Any = None,
    full: bool = False,
    w: Any = None,
    cov: Any = False,
) -> Any:
    if cov:
        raise TypeError("polyfit of tensors does not take cov")
    x, y = (t + 0.0 for t in _tensors(x, y))
    columns = np.vander(x, int(deg) + 1)
    if w is not None:
        _, w = _tensors(x, w)
        columns, y = columns * w[:, None], y * (w[:, None] if y.ndim == 2 else w)
    if rcond is None:
        rcond = len(x) * float(np.finfo(x.dtype).eps)
    scale = np.sqrt((columns * columns).sum(axis=0))
    found, residuals, rank, values = np.linalg.lstsq(columns / scale, y, rcond)
    found = found / (scale[:, None] if y.ndim == 2 else scale)
    if full:
        return found, residuals, rank, values, rcond
    if rank.item() != int(deg) + 1:
        warnings.warn("polyfit may be poorly conditioned", np.exceptions.RankWarning, stacklevel=3)
    return found
