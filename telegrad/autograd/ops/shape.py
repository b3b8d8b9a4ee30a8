"""Indices, shapes, order of axes, joins, dtypes and devices: operations that only move items."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from telegrad.arrays import (
    CPU,
    add_at,
    as_array,
    device_name,
    device_of,
    is_array,
    is_inexact,
    namespace,
    to_device,
)
from telegrad.autograd.extend import Operation, composed, constant, primitive
from telegrad.autograd.graph.dispatch import TABLE
from telegrad.autograd.ops.elementwise import where as choose
from telegrad.autograd.tensor.tensor import Tensor, array_of
from telegrad.types import Array, DTypeLike, Shape

# -- reads and writes of parts of an array, by basic and advanced indices ------------------------

_SIMPLE: Final = (int, np.integer, bool, np.bool_, slice, EllipsisType)
"""Together with None: the types of index parts that are immutable and name no item twice."""
_USUAL: Final = frozenset({int, slice, EllipsisType, type(None)})
"""The most frequent of these types, tested first."""


def _plain(index: Any) -> Any:
    if type(index) in _USUAL:
        return index
    if isinstance(index, tuple):
        return tuple([_plain(part) for part in index])
    return array_of(index)


def _own(index: Any) -> Any:
    """Copies the mutable parts of an index, because the gradient needs them as they are now."""
    if type(index) in _USUAL:
        return index
    if isinstance(index, tuple):
        return tuple([_own(part) for part in index])
    if isinstance(index, list):
        return [_own(part) for part in index]
    array = array_of(index)
    return namespace(array).array(array) if is_array(array) else index


def _may_repeat(index: Any) -> bool:
    """Returns True if an index may name one item twice, as an index with arrays or lists can."""
    for part in index if isinstance(index, tuple) else (index,):
        if type(part) in _USUAL or isinstance(part, _SIMPLE):
            continue
        if not is_array(part) or part.dtype != np.bool_:
            return True
    return False


def _scatter(a: Any, *, index: Any, into: Shape) -> Any:
    whole = namespace(a).zeros(into, dtype=a.dtype)
    index = _plain(index)
    if _may_repeat(index):
        add_at(whole, index, a)
    else:
        whole[index] = a
    return whole


def _of_assigned(g: Any, index: Any) -> Any:
    """Returns the gradient of the values that were put at `index`; 0 for overwritten values."""
    part = getitem(g, index=index)
    plain = _plain(index)
    if not _may_repeat(plain):
        return part
    array = array_of(g)
    xp = namespace(array)
    places = xp.empty(array.shape, dtype=np.int64)
    order = xp.arange(part.size).reshape(part.shape)
    places[plain] = order
    return choose(places[plain] == order, part, 0.0)


def _put(a: Any, b: Any, *, index: Any) -> Array:
    changed: Array = a.copy()
    changed[_plain(index)] = b
    return changed


# fmt: off
getitem = primitive(
    "getitem", lambda a, *, index: a[_plain(index)], "a", view=True, complex_rule="own",
    options={"index": ()}, a=lambda g, shape, index: scatter(g, index=index, into=shape))
# The gradient of getitem: adds `a` at `index` into zeros of shape `into`.
scatter: Operation = primitive(
    "scatter", _scatter, "a", complex_rule="own", options={"index": (), "into": ()},
    a=lambda g, index: getitem(g, index=index))
# A copy of `a` with `b` at `index`; if an item is named twice, the last value counts.
put: Operation = primitive("put",     _put,     "a b", complex_rule="own", options={"index": ()},
                           a=lambda g, index: put(g, 0.0, index=index),
                           b=_of_assigned)
# fmt: on


@TABLE.register(operator.getitem)
def read(a: Any, *, index: Any) -> Any:
    """Replaces `a[index]`."""
    return getitem(a, index=_own(index))


@TABLE.register(operator.setitem)
def replaced(a: Any, b: Any, *, index: Any) -> Any:
    """Replaces `a[index] = b`, but returns the result instead of changing `a`."""
    return put(a, b, index=_own(index))


# -- shapes, axes, joins, dtypes and devices -----------------------------------------------------


def _inverse(axes: Sequence[int] | None) -> tuple[int, ...] | None:
    if axes is None:
        return None
    ordered = [axis % len(axes) for axis in axes]
    return tuple(sorted(range(len(ordered)), key=ordered.__getitem__))


def _part(g: Any, i: int, shapes: Sequence[Shape], axis: int) -> Any:
    ends = list(itertools.accumulate(shape[axis] for shape in shapes))
    start = ends[i] - shapes[i][axis]
    return getitem(g, index=along(axis % len(shapes[i]), slice(start, ends[i])))


def turned(a: Any) -> Any:
    """Returns matrices with their last two axes exchanged."""
    return swapaxes(a, axis1=-1, axis2=-2)


def along(axis: int, index: Any) -> tuple[Any, ...]:
    """Returns an index with `index` on one axis and all items of the other axes."""
    return (*[slice(None)] * axis, index)


# fmt: off
broadcast_to: Operation = primitive(
    "broadcast_to", lambda a, *, to: namespace(a).broadcast_to(a, to), "a", view=True,
    options={"to": ()}, complex_rule="own", a=lambda g: g)
astype = primitive(
    "astype", lambda a, *, dtype: as_array(a).astype(dtype), "a", options={"dtype": None},
    complex_rule="own", a=lambda g: g)
reshape: Operation = primitive(
    "reshape", lambda a, *, to: a.reshape(to), "a", view=True, complex_rule="own",
    options={"to": ()}, a=lambda g, shape: reshape(g, to=shape))
transpose: Operation = primitive(
    "transpose", lambda a, *, axes=None: a.transpose(axes), "a", view=True, complex_rule="own",
    options={"axes": None}, a=lambda g, axes: transpose(g, axes=_inverse(axes)))
swapaxes: Operation = primitive(
    "swapaxes", lambda a, *, axis1, axis2: a.swapaxes(axis1, axis2), "a", view=True,
    complex_rule="own", options={"axis1": 0, "axis2": 0},
    a=lambda g, axis1, axis2: swapaxes(g, axis1=axis1, axis2=axis2))
concatenate = primitive(
    "concatenate", lambda *parts, axis=0: namespace(*parts).concatenate(parts, axis=axis), "*parts",
    complex_rule="own", options={"axis": 0}, parts=_part)
stack = primitive(
    "stack", lambda *parts, axis=0: namespace(*parts).stack(parts, axis=axis), "*parts",
    complex_rule="own", options={"axis": 0},
    parts=lambda g, i, axis: getitem(g, index=along(axis % g.ndim, i)))
# `source` is the device of the argument: the gradient goes back there.
move: Operation = primitive(
    "to", lambda a, *, device, source: to_device(a, device), "a", complex_rule="own",
    options={"device": CPU, "source": CPU},
    a=lambda g, device, source: move(g, device=source, source=device))
# fmt: on


# -- NumPy's functions of the same names, with NumPy's parameters ---------------------------------
#
# Parameters that have no meaning for Tensors (`subok=`, ...) are missing from the signatures, so
# Python's own TypeError names them.


@composed(np.reshape)
def _reshape_of_numpy(a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """Replaces `np.reshape`."""
    to = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    to = _resolve(to, a)
    if order != "C" and (order == "F" or _columns_first(a)):
        columns = reshape(transpose(a), to=to[::-1])
        shaped = transpose(columns)
    else:
        shaped = reshape(a, to=to)
    if copy is None or a.size == 0:
        return shaped
    shares = namespace(a.data).may_share_memory(a.data, shaped.data)
    if not copy and not shares:
        raise ValueError(f"{a.shape} cannot become {to} without a copy; leave out copy=False")
    return np.copy(shaped) if copy and shares else shaped


@composed(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    """Replaces `np.ravel`."""
    if order == "K":
        a = transpose(a, axes=_by_stride(a))
    elif order == "F" or (order == "A" and _columns_first(a)):
        a = transpose(a)
    return reshape(a, to=(a.size,))


def _columns_first(a: Any) -> bool:
    flags = a.data.flags
    return bool(flags.f_contiguous and not flags.c_contiguous)


def _by_stride(a: Any) -> tuple[int, ...]:
    return tuple(sorted(range(a.ndim), key=lambda k: -abs(a.data.strides[k])))


@composed(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    """Replaces `np.squeeze`."""
    gone = range(a.ndim) if axis is None else normalize_axis_tuple(axis, max(a.ndim, 1))
    if axis is not None and any(n != 1 for k, n in enumerate(a.shape) if k in gone):
        raise ValueError(f"axis {axis} of shape {a.shape} does not have length 1")
    return reshape(a, to=tuple(n for k, n in enumerate(a.shape) if n != 1 or k not in gone))


@composed(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    """Replaces `np.expand_dims`."""
    ndim = a.ndim + (len(axis) if isinstance(axis, (tuple, list)) else 1)
    new = normalize_axis_tuple(axis, ndim)
    lengths = iter(a.shape)
    return reshape(a, to=tuple(1 if k in new else next(lengths) for k in range(ndim)))


# fmt: off
composed(np.transpose)(lambda a, axes=None: transpose(a, axes=axes))
composed(np.swapaxes)(lambda a, axis1, axis2: swapaxes(a, axis1=axis1, axis2=axis2))
composed(np.broadcast_to)(lambda array, shape:
    broadcast_to(array, to=(shape,) if isinstance(shape, int) else tuple(shape)))
# fmt: on


@composed(np.concatenate)
def _concatenate_of_numpy(
    arrays: Sequence[Any],
    /,
    axis: int | None = 0,
    out: None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: Any = "same_kind",
) -> Any:
    """Replaces `np.concatenate`."""
    parts = arrays
    if axis is None:
        parts, axis = [ravel(x if isinstance(x, Tensor) else as_array(x)) for x in arrays], 0
    return _cast(concatenate(*parts, axis=axis), dtype, casting)


@composed(np.stack)
def _stack_of_numpy(
    arrays: Sequence[Any],
    axis: int = 0,
    out: None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: Any = "same_kind",
) -> Any:
    """Replaces `np.stack`."""
    return _cast(stack(*arrays, axis=axis), dtype, casting)


def _cast(joined: Any, dtype: DTypeLike | None, casting: Any) -> Any:
    if dtype is None:
        return joined
    if not np.can_cast(joined.dtype, np.dtype(dtype), casting):
        raise TypeError(f"{joined.dtype} cannot be cast to {dtype} with casting={casting!r}")
    return _as_type(joined, dtype)


@composed(np.astype)
def _as_type(x: Any, dtype: DTypeLike, /, *, copy: bool = True) -> Any:
    """Replaces `np.astype`; a result of a dtype without gradients needs no gradient."""
    exact = np.dtype(dtype)
    if not copy and x.dtype == exact:
        return x
    convert = astype if is_inexact(exact) else constant(astype)
    return convert(x, dtype=exact)


@TABLE.register(to_device)
def _on_device(array: Any, device: str) -> Any:
    """Replaces `to_device`; returns a Tensor that is on the device already as it is."""
    exact, source = device_name(device), device_of(array.data)
    return array if exact == source else move(array, device=exact, source=source)


def _resolve(to: Shape, a: Any) -> Shape:
    if -1 not in to:
        return to
    if to.count(-1) > 1:
        raise ValueError(f"a shape may have only one unknown length: {to}")
    known = math.prod(n for n in to if n != -1)
    return tuple(a.size // max(known, 1) if n == -1 else n for n in to)


# -- reduced axes, counts and masks, for the rules of functions over axes ------------------------

_FEW: Final = 4096
"""Number of items that are copied in less time than `np.broadcast_to` needs for a view (2.4 us)."""


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Returns the axes that NumPy's `axis` names, counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple([int(k) % ndim for k in axes]) if ndim else ()


def kept(x: Any, shape: Shape, axis: Any) -> Any:
    """Gives a reduced value its reduced axes back, with length 1."""
    if axis is None:
        to: Shape = (1,) * len(shape)
    else:
        axes = axes_of(axis, len(shape))
        to = tuple([1 if k in axes else n for k, n in enumerate(shape)])
    if x.shape == to:
        return x
    return x.reshape(to) if type(x) is np.ndarray else reshape(x, to=to)


def spread(g: Any, shape: Shape, axis: Any) -> Any:
    """Gives a reduced value its reduced axes back and repeats it along them."""
    g = kept(g, shape, axis)
    if type(g) is np.ndarray and math.prod(shape) <= _FEW:
        repeated = np.empty(shape, g.dtype)
        repeated[...] = g
        return repeated
    return np.broadcast_to(g, shape) if type(g) is np.ndarray else broadcast_to(g, to=shape)


def masked(g: Any, where: Any) -> Any:
    """Returns `g` where `where` is true, else 0."""
    return g if where is None or where is True else choose(where, g, 0.0)


def count(shape: Shape, axis: Any, where: Any = None) -> Any:
    """Returns the number of items behind each result: an int, or an array if `where` is given."""
    if axis is None and (where is None or where is True):
        return math.prod(shape)
    if where is None or where is True:
        return math.prod([shape[k] for k in axes_of(axis, len(shape))])
    return broadcast_to(where, to=shape).sum(axis=axis, keepdims=True)


def shared(g: Any, number: Any) -> Any:
    """Returns `g / number` in the dtype of `g`, divided in float32 if that has 16 bits or less.

    A number of 16 bits may be too small for the count.
    """
    wide = astype(g, dtype=np.float32) if g.dtype.itemsize <= 2 else g
    divisor = number if isinstance(number, (int, float)) else astype(number, dtype=wide.dtype)
    return astype(wide / divisor, dtype=g.dtype) if wide is not g else wide / divisor


def to_winners(g: Any, y: Any, a: Any, axis: Any, where: Any = None) -> Any:
    """Divides the gradient of an extremum equally among the items that are equal to it."""
    # `winners` has derivative zero wherever it has one, so it needs no rule.
    winners = a == kept(y, a.shape, axis)
    if where is not None and where is not True:
        winners = winners & where
    number = winners.sum(axis=axis, keepdims=True)
    # If `initial` is larger than all items, there is no winner and the count is 0.
    number = number + (number == 0)
    return choose(winners, shared(kept(g, a.shape, axis), number), 0.0)
