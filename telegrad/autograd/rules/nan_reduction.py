"""Reductions that leave out what is not a number, written with those that do not.

What is left out gets gradient 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import where as choose
from telegrad.autograd.ops.axes import to_winners
from telegrad.autograd.reductions import without_none

__all__: list[str] = []


def _enter_total(function: Callable[..., Any], total: Callable[..., Any], neutral: float) -> None:
    @composed(function)
    def of_numbers(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        options = without_none(dtype=dtype, initial=initial, where=where)
        return total(choose(np.isnan(a), neutral, a), axis=axis, keepdims=keepdims, **options)


_enter_total(np.nansum, np.sum, 0.0)
_enter_total(np.nanprod, np.prod, 1.0)


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


def _enter_spread(function: Callable[..., Any], spread: Callable[..., Any]) -> None:
    @composed(function)
    def of_numbers(
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
        return _reduced(spread, a, axis, keepdims, where, dtype=dtype, **less)


_enter_spread(np.nanvar, np.var)
_enter_spread(np.nanstd, np.std)


_OVER: Final = {"axis": None, "keepdims": False, "initial": None}

# fmt: off
nanmax = numpy_function(np.nanmax, "a", arrays="where", options=_OVER, a=to_winners)
nanmin = numpy_function(np.nanmin, "a", arrays="where", options=_OVER, a=to_winners)
# fmt: on
