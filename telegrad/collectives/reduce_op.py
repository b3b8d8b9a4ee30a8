"""The operations of a reduction, and for which dtypes each has a meaning."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from telegrad.types import Array

__all__ = ["ReduceOp", "check_reducible", "combine", "finish"]


class ReduceOp(enum.Enum):
    """How the arrays of all ranks become one, item by item, in the dtype of the arrays.

    AVG is the sum divided by the number of ranks, for floating-point and complex dtypes. MIN and
    MAX hand a NaN on, and of booleans they are "all" and "any".
    """

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}
_ORDERED = frozenset({ReduceOp.MIN, ReduceOp.MAX})

# Below this many bytes an item, the number of ranks may have no exact value in the dtype.
_EXACT_COUNT_BYTES = 4


def check_reducible(op: object, dtype: np.dtype[Any]) -> ReduceOp:
    """Returns `op` if it has a meaning for items of `dtype`.

    Raises:
        TypeError: It is no ReduceOp, or the items are no numbers.
        ValueError: It has none for this dtype.

    >>> check_reducible(ReduceOp.SUM, np.dtype("float32"))
    <ReduceOp.SUM: 'sum'>
    """
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op must be a ReduceOp, for instance ReduceOp.SUM, not {op!r}")
    kind = dtype.kind
    if kind == "V" and dtype.names is None and dtype.type.__module__ == "ml_dtypes":
        kind = "f"
    if kind not in "biufc":
        raise TypeError(f"arrays of numbers can be reduced, not those of dtype {dtype}")
    if kind == "b" and op not in _ORDERED:
        raise ValueError(
            f"{op.name} has no meaning for booleans; write MAX for any, MIN for all, or count "
            "with array.astype(np.int64)"
        )
    if kind == "c" and op in _ORDERED:
        raise ValueError(f"{op.name} has no meaning for {dtype}: complex numbers have no order")
    if kind in "iu" and op is ReduceOp.AVG:
        raise ValueError(
            f"AVG of {dtype} would have to be rounded; reduce array.astype(np.float64), or write "
            "SUM and divide"
        )
    return op


def combine(op: ReduceOp, into: Array, other: Array) -> None:
    """Replaces `into` by what it and `other` are together; overflow is silent, as on one rank."""
    with np.errstate(all="ignore"):
        _UFUNCS[op](into, other, out=into)


def finish(op: ReduceOp, into: Array, n: int) -> None:
    """Makes the reduction of n ranks out of what they are combined."""
    if op is not ReduceOp.AVG:
        return
    divisor: Any = n if into.dtype.itemsize >= _EXACT_COUNT_BYTES else np.float64(n)
    with np.errstate(all="ignore"):
        np.divide(into, divisor, out=into, casting="unsafe")
