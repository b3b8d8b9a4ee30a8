"""Reading and replacing parts of an array, by basic and advanced indices, with gradient rules."""

from __future__ import annotations

import operator
from types import EllipsisType
from typing import Any, Final

import numpy as np

from telegrad.arrays import is_array, namespace
from telegrad.autograd.dispatch import TABLE
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.ops.arithmetic import where as choose
from telegrad.autograd.tensor import Tensor
from telegrad.types import Array, Shape

__all__ = ["getitem", "put", "read", "replaced", "scatter"]

_SIMPLE: Final = (int, np.integer, bool, np.bool_, slice, EllipsisType)
"""With None, the parts of an index that are immutable and name no item twice."""
_USUAL: Final = frozenset({int, slice, EllipsisType, type(None)})
"""The types of most of these, which are looked at before all else."""


def _plain(index: Any) -> Any:
    if type(index) in _USUAL:
        return index
    if isinstance(index, tuple):
        return tuple([_plain(part) for part in index])
    return index.data if isinstance(index, Tensor) else index


def _own(index: Any) -> Any:
    """Copies what of an index may be changed after it was used, as the gradient needs it then."""
    if type(index) in _USUAL:
        return index
    if isinstance(index, tuple):
        return tuple([_own(part) for part in index])
    if isinstance(index, list):
        return [_own(part) for part in index]
    array = index.data if isinstance(index, Tensor) else index
    return namespace(array).array(array) if is_array(array) else index


def _may_repeat(index: Any) -> bool:
    """Tells whether an index may name one item twice: what counts items one by one can."""
    for part in index if isinstance(index, tuple) else (index,):
        if type(part) in _USUAL or isinstance(part, _SIMPLE):
            continue
        if not is_array(part) or part.dtype != np.bool_:
            return True
    return False


def _getitem(a: Any, *, index: Any) -> Array:
    part: Array = a[_plain(index)]
    return part


def _scatter(a: Any, *, index: Any, into: Shape) -> Array:
    xp = namespace(a)
    whole: Array = xp.zeros(into, dtype=a.dtype)
    index = _plain(index)
    if _may_repeat(index):
        xp.add.at(whole, index, a)
    else:
        whole[index] = a
    return whole


def _of_assigned(g: Any, index: Any) -> Any:
    """Returns the gradient of what was put at `index`: 0 for what was written over again."""
    part = getitem(g, index=index)
    plain = _plain(index)
    if not _may_repeat(plain):
        return part
    array = g.data if isinstance(g, Tensor) else g
    xp = namespace(array)
    places = xp.empty(array.shape, dtype=np.int64)
    order = xp.arange(part.size).reshape(part.shape)
    places[plain] = order
    return choose(places[plain] == order, part, 0.0)


def _put(a: Any, b: Any, *, index: Any) -> Array:
    changed: Array = a.copy()
    changed[_plain(index)] = b
    return changed


scatter: Operation  # declared, as rules name what stands below
put: Operation

# fmt: off
getitem = primitive("getitem", _getitem, "a", view=True, complex_rule="own", options={"index": ()},
                    a=lambda g, shape, index: scatter(g, index=index, into=shape))
# The gradient of getitem: `a` added at `index` into zeros of shape `into`.
scatter = primitive("scatter", _scatter, "a", complex_rule="own", options={"index": (), "into": ()},
                    a=lambda g, index: getitem(g, index=index))
# A copy of `a` with `b` at `index`; of an item that is named twice, the last one counts.
put     = primitive("put",     _put,     "a b", complex_rule="own", options={"index": ()},
                    a=lambda g, index: put(g, 0.0, index=index),
                    b=_of_assigned)
# fmt: on


@TABLE.register(operator.getitem)
def read(a: Any, *, index: Any) -> Any:
    """Stands in for `a[index]`."""
    return getitem(a, index=_own(index))


@TABLE.register(operator.setitem)
def replaced(a: Any, b: Any, *, index: Any) -> Any:
    """Stands in for `a[index] = b`, with the result instead of the change."""
    return put(a, b, index=_own(index))
