"""Functions that order items, and sets of them, with their rules.

Of equal items, the gradient goes to those that NumPy's own order puts there: to the first one, for
`unique` and what is built on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from telegrad.arrays import namespace
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import astype, concatenate, ravel
from telegrad.autograd.rules.selection import chosen, take
from telegrad.autograd.rules.stacking import alike
from telegrad.autograd.tensor import Tensor

__all__: list[str] = []


def _ordered(a: Any, axis: int | None, order: Callable[[Any, int], Any]) -> Any:
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis_index(axis, a.ndim)
    return chosen(a, order(a.data, axis), axis=axis)


def _refuse_fields(order: None) -> None:
    if order is not None:
        raise TypeError("a tensor has no fields to order by")


@composed(np.sort)
def _sort(
    a: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: None = None,
    *,
    stable: bool | None = None,
) -> Any:
    _refuse_fields(order)
    options: dict[str, Any] = {"kind": kind} if kind is not None else {}
    options |= {"stable": stable} if stable is not None else {}
    return _ordered(
        as_tensor(a), axis, lambda data, k: namespace(data).argsort(data, axis=k, **options)
    )


@composed(np.partition)
def _partition(
    a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: None = None
) -> Any:
    del kind  # there is but one
    _refuse_fields(order)
    return _ordered(
        as_tensor(a), axis, lambda data, k: namespace(data).argpartition(data, kth, axis=k)
    )


@composed(np.sort_complex)
def _sort_complex(a: Any) -> Any:
    a = as_tensor(a)
    if a.dtype.kind == "c":
        return _sort(a)
    short = a.dtype in (np.int8, np.int16, np.uint8, np.uint16)
    return _sort(astype(a, dtype=np.result_type(a.dtype, np.complex64 if short else np.complex128)))


@composed(np.unique)
def _unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    ar = as_tensor(ar)
    apart = {} if equal_nan else {"equal_nan": False}
    _, first, *others = namespace(ar.data).unique(
        ar.data, True, return_inverse, return_counts, axis, **apart
    )
    values = take(ar, first, axis)
    asked = [first] * return_index + others
    return (values, *map(Tensor, asked)) if asked else values


@composed(np.unique_values)
def _unique_values(x: Any) -> Any:
    return _unique(x, equal_nan=False)


def _named(function: Callable[..., Any], x: Any, **asked: bool) -> Any:
    # The names are those of NumPy's result, of whatever numbers.
    kind = type(function(np.zeros(1)))
    return kind(*_unique(x, equal_nan=False, **asked))


@composed(np.unique_all)
def _unique_all(x: Any) -> Any:
    return _named(np.unique_all, x, return_index=True, return_inverse=True, return_counts=True)


@composed(np.unique_counts)
def _unique_counts(x: Any) -> Any:
    return _named(np.unique_counts, x, return_counts=True)


@composed(np.unique_inverse)
def _unique_inverse(x: Any) -> Any:
    return _named(np.unique_inverse, x, return_inverse=True)


@composed(np.union1d)
def _union1d(ar1: Any, ar2: Any) -> Any:
    return _unique(concatenate(*[ravel(x) for x in alike((ar1, ar2))], axis=0))


def _sets(ar1: Any, ar2: Any, assume_unique: bool) -> list[Any]:
    return [ravel(x) if assume_unique else _unique(x) for x in alike((ar1, ar2))]


def _only(first: Any, second: Any) -> Any:
    return first[~np.isin(first, second)]


@composed(np.setdiff1d)
def _setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    return _only(*_sets(ar1, ar2, assume_unique))


@composed(np.setxor1d)
def _setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    first, second = _sets(ar1, ar2, assume_unique)
    return _sort(concatenate(_only(first, second), _only(second, first), axis=0))


@composed(np.intersect1d)
def _intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False
) -> Any:
    first, second = (ravel(x) for x in alike((ar1, ar2)))
    _, *places = namespace(first.data).intersect1d(
        first.data, second.data, assume_unique, return_indices=True
    )
    values = take(concatenate(first, second, axis=0), places[0])
    return (values, *map(Tensor, places)) if return_indices else values
