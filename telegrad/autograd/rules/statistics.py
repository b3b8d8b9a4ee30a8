"""Covariances and correlations, composed of what has rules."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from telegrad.arrays import array_beside
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import astype, concatenate, reshape
from telegrad.autograd.tensor import Tensor

__all__: list[str] = []


def _variables(m: Any, rowvar: bool, dtype: Any, *, alone: bool) -> Any:
    """Returns a matrix with a row for each variable."""
    if np.ndim(m) > 2:
        raise ValueError(f"cov of arrays of one or two axes, not of shape {np.shape(m)}")
    rows = reshape(m, to=(1, *m.shape)) if m.ndim == 1 else m
    turned = not rowvar and (m.ndim != 1 if alone else rows.shape[0] != 1)
    return astype(np.transpose(rows) if turned else rows, dtype=dtype)


@composed(np.cov)
def _cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    first = next(x for x in (m, y, fweights, aweights) if isinstance(x, Tensor)).data
    m, y, fweights, aweights = (
        x if x is None or isinstance(x, Tensor) else Tensor(array_beside(x, first))
        for x in (m, y, fweights, aweights)
    )
    dtype = dtype or np.result_type(np.float64, *(x.dtype for x in (m, y) if x is not None))
    rows = _variables(m, rowvar, dtype, alone=True)
    if y is not None:
        rows = concatenate(rows, _variables(y, rowvar, dtype, alone=False), axis=0)
    less = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        number = rows.shape[1] - less
        centred = rows - rows.mean(axis=1, keepdims=True)
        weighted = centred
    else:
        weights = [w for w in (fweights, aweights) if w is not None]
        product = weights[0] if len(weights) == 1 else weights[0] * weights[1]
        total = product.sum()
        each = 1 if aweights is None else (product * aweights).sum() / total
        number = total - less * each
        centred = rows - (rows * product).sum(axis=1, keepdims=True) / total
        weighted = centred * product
    if number <= 0:
        warnings.warn("there are no degrees of freedom left", RuntimeWarning, stacklevel=3)
        number = 0.0
    return np.squeeze(centred @ np.conjugate(np.transpose(weighted)) / number)


@composed(np.corrcoef)
def _corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    covariance = np.cov(x, y, rowvar, dtype=dtype)
    if covariance.ndim == 0:
        return covariance / covariance
    deviation = np.sqrt(np.real(np.diagonal(covariance)))
    found = covariance / deviation[:, None] / deviation
    real = np.clip(np.real(found), -1, 1)
    return real + 1j * np.clip(np.imag(found), -1, 1) if found.dtype.kind == "c" else real
