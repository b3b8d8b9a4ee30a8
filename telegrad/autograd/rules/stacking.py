"""Functions that join arrays, and that put items in or leave them out, written with others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from telegrad.arrays import is_array, to_host
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed
from telegrad.autograd.ops import astype, broadcast_to, concatenate, ravel, reshape
from telegrad.autograd.rules.axis_order import moveaxis
from telegrad.autograd.rules.selection import plain, take
from telegrad.autograd.tensor import Tensor
from telegrad.types import DTypeLike

__all__ = ["alike"]


def alike(arrays: Any) -> list[Tensor]:
    """Returns Tensors: what is no array yet is made one beside the first Tensor."""
    parts = list(arrays)
    beside = next((x for x in parts if isinstance(x, Tensor)), None)
    return [
        as_tensor(x if beside is None else plain(x, beside)) if not isinstance(x, Tensor) else x
        for x in parts
    ]


def _at_least(x: Any, ndim: int) -> Any:
    x = as_tensor(x)
    return x if x.ndim >= ndim else reshape(x, to=(*[1] * (ndim - x.ndim), *x.shape))


def _in_depth(x: Any) -> Any:
    x = _at_least(x, 1)
    if x.ndim == 1:
        return reshape(x, to=(1, *x.shape, 1))
    return x if x.ndim > 2 else reshape(x, to=(*x.shape, 1))


def _one_or_all(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


@composed(np.atleast_1d)
def _atleast_1d(*arys: Any) -> Any:
    return _one_or_all([_at_least(x, 1) for x in alike(arys)])


@composed(np.atleast_2d)
def _atleast_2d(*arys: Any) -> Any:
    return _one_or_all([_at_least(x, 2) for x in alike(arys)])


@composed(np.atleast_3d)
def _atleast_3d(*arys: Any) -> Any:
    return _one_or_all([_in_depth(x) for x in alike(arys)])


@composed(np.hstack)
def _hstack(tup: Any, *, dtype: DTypeLike | None = None, casting: Any = "same_kind") -> Any:
    parts = [_at_least(x, 1) for x in alike(tup)]
    axis = 0 if parts[0].ndim == 1 else 1
    return np.concatenate(parts, axis, dtype=dtype, casting=casting)


@composed(np.vstack)
def _vstack(tup: Any, *, dtype: DTypeLike | None = None, casting: Any = "same_kind") -> Any:
    parts = [_at_least(x, 2) for x in alike(tup)]
    return np.concatenate(parts, 0, dtype=dtype, casting=casting)


@composed(np.dstack)
def _dstack(tup: Any) -> Any:
    return concatenate(*[_in_depth(x) for x in alike(tup)], axis=2)


@composed(np.column_stack)
def _column_stack(tup: Any) -> Any:
    parts = alike(tup)
    return concatenate(*[x if x.ndim > 1 else reshape(x, to=(x.size, 1)) for x in parts], axis=1)


def _depth(blocks: Any) -> int:
    """Returns how deep lists are nested; all must be as deep."""
    if not isinstance(blocks, list):
        return 0
    depths = {_depth(part) for part in blocks}
    if len(depths) != 1:
        raise ValueError("block needs lists that are not empty and all nested as deep")
    return 1 + depths.pop()


def _leaves(blocks: Any) -> list[Any]:
    if not isinstance(blocks, list):
        return [blocks]
    return [x for part in blocks for x in _leaves(part)]


@composed(np.block)
def _block(arrays: Any) -> Any:
    depth = _depth(arrays)
    leaves = alike(_leaves(arrays))
    ndim = max(depth, *[x.ndim for x in leaves])
    waiting = iter([_at_least(x, ndim) for x in leaves])

    def joined(blocks: Any, axis: int) -> Any:
        if not isinstance(blocks, list):
            return next(waiting)
        return concatenate(*[joined(part, axis + 1) for part in blocks], axis=axis)

    return joined(arrays, -depth) if depth else np.copy(next(waiting))


@composed(np.append)
def _append(arr: Any, values: Any, axis: int | None = None) -> Any:
    arr, values = alike((arr, values))
    if axis is None:
        arr, values, axis = ravel(arr), ravel(values), 0
    return concatenate(arr, values, axis=axis)


def _places(obj: Any) -> Any:
    """Returns what of an index NumPy reads, in host memory: it says where, and holds no data."""
    array = obj.data if isinstance(obj, Tensor) else obj
    return to_host(array) if is_array(array) else obj


@composed(np.delete)
def _delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    arr = as_tensor(arr)
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normalize_axis_index(axis, arr.ndim)
    return take(arr, np.delete(np.arange(arr.shape[axis]), _places(obj)), axis)


@composed(np.insert)
def _insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    arr, values = alike((arr, values))
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normalize_axis_index(axis, arr.ndim)
    length = arr.shape[axis]
    places = _places(obj)
    single, scalar = _few(places, length)
    values = _at_least(astype(values, dtype=arr.dtype), arr.ndim if single else 0)
    if scalar:
        values = moveaxis(values, 0, axis)
    line = np.arange(length)
    number = values.shape[axis] if single else np.insert(line, places, 0).size - length
    shape = (*arr.shape[:axis], number, *arr.shape[axis + 1 :])
    order = np.insert(line, places, np.arange(length, length + number))
    return take(concatenate(arr, broadcast_to(values, to=shape), axis=axis), order, axis)


def _few(places: Any, length: int) -> tuple[bool, bool]:
    """Tells whether `places` names one place, and whether as a number."""
    if isinstance(places, slice):
        return len(range(*places.indices(length))) == 1, False
    array = np.asarray(places)
    if array.dtype == np.bool_ and array.ndim:
        return np.count_nonzero(array) == 1, False
    return array.size == 1, array.ndim == 0
