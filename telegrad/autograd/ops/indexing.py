"""Reading and replacing parts of an array, by basic and advanced indices, with gradient rules."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from telegrad.arrays import is_array, namespace
from telegrad.autograd.dispatch import TABLE
from telegrad.autograd.operation import Operation
from telegrad.autograd.tensor import Tensor
from telegrad.types import Array, Shape

__all__ = ["getitem", "put", "scatter"]


def _plain(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_plain(part) for part in index)
    return index.data if isinstance(index, Tensor) else index


def _may_repeat(index: Any) -> bool:
    """Tells whether an index may name one item twice: only lists and arrays of integers can."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(
        isinstance(part, (list, tuple)) or (is_array(part) and part.dtype != np.bool_)
        for part in parts
    )


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


def _put(a: Any, b: Any, *, index: Any) -> Array:
    changed: Array = a.copy()
    changed[_plain(index)] = b
    return changed


scatter: Operation  # declared, as rules name what stands below
put: Operation

# fmt: off
getitem = Operation("getitem", _getitem, "a", view=True, keywords={"index": ()},
                    a=lambda g, shape, index: scatter(g, index=index, into=shape))
# The gradient of getitem: `a` added at `index` into zeros of shape `into`.
scatter = Operation("scatter", _scatter, "a", keywords={"index": (), "into": ()},
                    a=lambda g, index: getitem(g, index=index))
# A copy of `a` with `b` at `index`, which names no item twice.
put     = Operation("put",     _put,     "a b", keywords={"index": ()},
                    a=lambda g, index: put(g, 0.0, index=index),
                    b=lambda g, index: getitem(g, index=index))
# fmt: on

TABLE.register(operator.getitem)(getitem)
TABLE.register(operator.setitem)(put)
