"""Functions that join, split, repeat and broadcast arrays, or insert and delete items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from telegrad.arrays import is_array, namespace, to_host
from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops.axes import moveaxis
from telegrad.autograd.ops.selection import plain, take, zeros_beside
from telegrad.autograd.ops.shape import (
    along,
    astype,
    broadcast_to,
    concatenate,
    ravel,
    reshape,
    scatter,
    stack,
)
from telegrad.autograd.tensor.creation import as_tensor
from telegrad.autograd.tensor.tensor import Tensor, array_of
from telegrad.types import Array, DTypeLike, Shape


def alike(arrays: Any) -> list[Tensor]:
    """Returns Tensors; values that are not arrays yet go to the device of the first Tensor."""
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


composed(np.atleast_1d)(lambda *arys: _one_or_all([_at_least(x, 1) for x in alike(arys)]))
composed(np.atleast_2d)(lambda *arys: _one_or_all([_at_least(x, 2) for x in alike(arys)]))
composed(np.atleast_3d)(lambda *arys: _one_or_all([_in_depth(x) for x in alike(arys)]))
composed(np.dstack)(lambda tup: concatenate(*[_in_depth(x) for x in alike(tup)], axis=2))


@composed(np.hstack)
def _hstack(tup: Any, *, dtype: DTypeLike | None = None, casting: Any = "same_kind") -> Any:
    parts = [_at_least(x, 1) for x in alike(tup)]
    axis = 0 if parts[0].ndim == 1 else 1
    return np.concatenate(parts, axis, dtype=dtype, casting=casting)


@composed(np.vstack)
def _vstack(tup: Any, *, dtype: DTypeLike | None = None, casting: Any = "same_kind") -> Any:
    parts = [_at_least(x, 2) for x in alike(tup)]
    return np.concatenate(parts, 0, dtype=dtype, casting=casting)


@composed(np.column_stack)
def _column_stack(tup: Any) -> Any:
    parts = alike(tup)
    return concatenate(*[x if x.ndim > 1 else reshape(x, to=(x.size, 1)) for x in parts], axis=1)


def _depth(blocks: Any) -> int:
    """Returns the depth of nested lists; all must have the same depth."""
    if not isinstance(blocks, list):
        return 0
    depths = {_depth(part) for part in blocks}
    if len(depths) != 1:
        raise ValueError("block needs non-empty lists, all nested to the same depth")
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
    """Returns an index in host memory; it only names places, so it needs no gradient."""
    array = array_of(obj)
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
    """Returns two answers: `places` names exactly one place; it does so by a plain number."""
    if isinstance(places, slice):
        return len(range(*places.indices(length))) == 1, False
    array = np.asarray(places)
    if array.dtype == np.bool_ and array.ndim:
        return np.count_nonzero(array) == 1, False
    return array.size == 1, array.ndim == 0


# -- splits of an array into parts, which are views of it ----------------------------------------


def _bounds(sections: Any, length: int) -> list[tuple[int, int]]:
    """Returns the start and the end of each part."""
    if isinstance(sections, (int, np.integer)):
        each, longer = divmod(length, int(sections))
        ends = np.cumsum([each + 1] * longer + [each] * (int(sections) - longer)).tolist()
        return list(zip([0, *ends], ends, strict=False))
    places = [None, *(int(k) for k in sections), None]
    found = [slice(*pair).indices(length)[:2] for pair in pairwise(places)]
    return [(start, max(start, end)) for start, end in found]


def _joined(g: Sequence[Any], shape: Shape, sections: Any, axis: int) -> Any:
    """Returns the gradient of the whole array from those of the parts; zeros for a missing one."""
    axis %= len(shape)
    beside = next(part for part in g if part is not None)
    bounds = _bounds(sections, shape[axis])
    ends = [0, *(end for _, end in bounds)]
    if all(start == end for (start, _), end in zip(bounds, ends, strict=False)):
        lengths = [end - start for start, end in bounds]
        parts = [
            zeros_beside(beside, (*shape[:axis], n, *shape[axis + 1 :])) if part is None else part
            for part, n in zip(g, lengths, strict=True)
        ]
        return concatenate(*parts, axis=axis)
    whole: Any = 0.0  # the parts overlap, or leave items out
    for part, (start, end) in zip(g, bounds, strict=True):
        if part is not None:
            whole = whole + scatter(part, index=along(axis, slice(start, end)), into=shape)
    return whole


def _stacked(g: Sequence[Any], axis: int) -> Any:
    beside = next(part for part in g if part is not None)
    return stack(*[zeros_beside(beside, beside.shape) if x is None else x for x in g], axis=axis)


def _rows(x: Any, axis: int = 0) -> tuple[Array, ...]:
    """Unstacks an array with a library that has no function for it."""
    return tuple(namespace(x).moveaxis(x, axis, 0))


_INTO: Final = {"indices_or_sections": None, "axis": 0}


def _split_there(function: Any) -> dict[str, Any]:
    """Returns a kernel for CuPy, whose functions take no array, and read beyond one for [-99]."""

    def parts(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
        axis = normalize_axis_index(axis, ary.ndim)
        given = indices_or_sections
        lines = function(np.arange(ary.shape[axis]), to_host(given) if is_array(given) else given)
        ends = [(line[0], line[-1] + 1) if line.size else (0, 0) for line in lines]
        return [ary[along(axis, slice(*pair))] for pair in ends]

    return {"cupy": parts}


# fmt: off
array_split = numpy_function(
    np.array_split, "ary", outputs="*", view=True, options=_INTO, complex_rule="own",
    kernels=_split_there(np.array_split),
    ary=lambda g, shape, indices_or_sections, axis: _joined(g, shape, indices_or_sections, axis))
split       = numpy_function(
    np.split, "ary", outputs="*", view=True, options=_INTO, complex_rule="own",
    kernels=_split_there(np.split),
    ary=lambda g, shape, indices_or_sections, axis: _joined(g, shape, indices_or_sections, axis))
unstack     = numpy_function(np.unstack, "x", outputs="*", view=True, options={"axis": 0},
                             complex_rule="own", kernels={"cupy": _rows}, x=_stacked)
# fmt: on


# fmt: off
composed(np.vsplit)(lambda ary, indices_or_sections:
    split(_with_axes(ary, 2, "vsplit"), indices_or_sections, 0))
composed(np.dsplit)(lambda ary, indices_or_sections:
    split(_with_axes(ary, 3, "dsplit"), indices_or_sections, 2))
# fmt: on


@composed(np.hsplit)
def _hsplit(ary: Any, indices_or_sections: Any) -> Any:
    ary = _with_axes(ary, 1, "hsplit")
    return split(ary, indices_or_sections, 1 if ary.ndim > 1 else 0)


def _with_axes(a: Any, least: int, name: str) -> Any:
    a = as_tensor(a)
    if a.ndim < least:
        raise ValueError(f"{name} works on arrays of {least} or more axes, not {a.ndim}")
    return a


# -- repeats of items, as broadcast views where possible ------------------------------------------


@composed(np.tile)
def _tile(A: Any, reps: Any) -> Any:
    a = as_tensor(A)
    times = [int(k) for k in np.atleast_1d(reps)]
    ndim = max(a.ndim, len(times))
    times = [1] * (ndim - len(times)) + times
    lengths = (*[1] * (ndim - a.ndim), *a.shape)
    apart = reshape(a, to=tuple([k for n in lengths for k in (1, n)]))
    pairs = list(zip(times, lengths, strict=True))
    spread = broadcast_to(apart, to=tuple([k for pair in pairs for k in pair]))
    return reshape(spread, to=tuple([k * n for k, n in pairs]))


@composed(np.repeat)
def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    a = as_tensor(a)
    if axis is None or not a.ndim:
        a, axis = ravel(a), axis or 0
    axis = normalize_axis_index(axis, a.ndim)
    before, length, after = a.shape[:axis], a.shape[axis], a.shape[axis + 1 :]
    times = to_host(plain(repeats, np.empty(0)))  # only counts, so they need no gradient
    if times.size != 1:
        times = times if times.size else times.astype(np.intp)  # an empty list has dtype float64
        return take(a, np.repeat(np.arange(length), times), axis)
    number = int(times.item())
    apart = reshape(a, to=(*before, length, 1, *after))
    spread = broadcast_to(apart, to=(*before, length, number, *after))
    return reshape(spread, to=(*before, length * number, *after))


@composed(np.resize)
def _resize(a: Any, new_shape: Any) -> Any:
    a = ravel(as_tensor(a))
    shape = (new_shape,) if isinstance(new_shape, (int, np.integer)) else tuple(new_shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"a shape has no negative lengths: {shape}")
    size = math.prod(shape)
    if size and not a.size:
        return as_tensor(zeros_beside(a, shape))
    return reshape(take(a, np.arange(size) % max(a.size, 1)), to=shape)


@composed(np.full_like)
def _full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: str | None = None,
) -> Any:
    if device is not None:
        raise TypeError("full_like of tensors does not take device; it uses that of the first")
    del subok  # a Tensor holds arrays of NumPy's and CuPy's own classes
    data = as_tensor(a).data
    xp = namespace(data)
    if shape is None:
        made = xp.empty_like(data, dtype, order)
    else:  # CuPy's `empty_like` takes () for no shape
        made = xp.empty(shape, dtype or data.dtype, "C" if order in ("K", "A") else order)
    filled = as_tensor(made)
    filled[...] = fill_value
    return filled


# -- broadcasts of arrays against each other ------------------------------------------------------


@composed(np.broadcast_arrays)
def _broadcast_arrays(*args: Any) -> Any:
    parts = alike(args)
    shape = np.broadcast_shapes(*[x.shape for x in parts])
    return tuple([broadcast_to(x, to=shape) for x in parts])


def _across(parts: list[Any]) -> list[Any]:
    """Reshapes each array so that it has an axis of its own."""
    count = len(parts)
    return [
        reshape(x, to=tuple([x.size if i == k else 1 for i in range(count)]))
        for k, x in enumerate(parts)
    ]


@composed(np.meshgrid)
def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing is 'xy' or 'ij', not {indexing!r}")
    parts = alike(xi)
    swapped = indexing == "xy" and len(parts) > 1
    if swapped:
        parts[:2] = parts[1::-1]
    grids = _across(parts)
    if not sparse:
        shape = tuple([x.size for x in parts])
        grids = [broadcast_to(x, to=shape) for x in grids]
    if swapped:
        grids[:2] = grids[1::-1]
    return tuple([np.copy(x) for x in grids] if copy else grids)


@composed(np.ix_)
def _ix(*args: Any) -> Any:
    parts = alike(args)
    if any(x.ndim != 1 for x in parts):
        raise ValueError("ix_ takes arrays of one axis")
    return tuple(_across([np.flatnonzero(x) if x.dtype == np.bool_ else x for x in parts]))
