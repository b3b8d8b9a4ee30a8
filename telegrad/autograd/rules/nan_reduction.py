"""Reductions that leave out what is not a number, written with those that do not.

What is left out gets gradient 0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import where as choose
from telegrad.autograd.ops.axes import to_winners
from telegrad.autograd.reductions import without_none

__all__: list[str] = []


@composed(np.nansum)
def _nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    options = without_none(dtype=dtype, initial=initial, where=where)
    return np.sum(choose(np.isnan(a), 0.0, a), axis=axis, keepdims=keepdims, **options)


@composed(np.nanprod)
def _nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    options = without_none(dtype=dtype, initial=initial, where=where)
    return np.prod(choose(np.isnan(a), 1.0, a), axis=axis, keepdims=keepdims, **options)


def _numbers(a: Any, where: Any) -> Any:
    """Where the items are that count."""
    present = ~np.isnan(a)
    return present if where is None else present & where


def _reduced(function: Any, a: Any, axis: Any, keepdims: bool, where: Any, **options: Any) -> Any:
    present = _numbers(a, where)
    clean = choose(np.isnan(a), 0.0, a)
    return function(clean, axis=axis, keepdims=keepdims, where=present, **without_none(**options))


@composed(np.nanmean)
def _nanmean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: Any = None,
) -> Any:
    return _reduced(np.mean, a, axis, keepdims, where, dtype=dtype)


@composed(np.nanvar)
def _nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    correction: Any = None,
) -> Any:
    less = {"ddof": ddof, "correction": correction}
    return _reduced(np.var, a, axis, keepdims, where, dtype=dtype, **less)


@composed(np.nanstd)
def _nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    correction: Any = None,
) -> Any:
    less = {"ddof": ddof, "correction": correction}
    return _reduced(np.std, a, axis, keepdims, where, dtype=dtype, **less)


_OVER: Final = {"axis": None, "keepdims": False, "initial": None}

# fmt: off
nanmax = numpy_function(np.nanmax, "a", arrays="where", options=_OVER, a=lambda g, y, a, axis, where: to_winners(g, y, a, axis, where))
nanmin = numpy_function(np.nanmin, "a", arrays="where", options=_OVER, a=lambda g, y, a, axis, where: to_winners(g, y, a, axis, where))
# fmt: on
