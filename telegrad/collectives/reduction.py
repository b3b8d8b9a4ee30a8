"""The operations of a reduction, and for which dtypes each has a meaning."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from telegrad.arrays import copy_into, is_array, is_cupy, to_host
from telegrad.errors import DecodeError
from telegrad.types import Array, Shape
from telegrad.wire import Buffer, copy_of

__all__ = [
    "ReduceOp",
    "Staged",
    "as_bytes",
    "check_array",
    "check_reducible",
    "combine",
    "finish",
    "from_bytes",
]


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


# -- arrays of users as flat host arrays, and flat host arrays as bytes --------------------------


def check_array(verb: str, array: object, *, written: bool) -> Array:
    """Returns `array` if a collective operation can use it.

    Args:
        verb: Which, for the error.
        array: What the user gave.
        written: Whether the operation writes into it.

    Raises:
        TypeError: It is no array, or not one of plain items.
        ValueError: It is read-only and would be written.
    """
    if not is_array(array):
        raise TypeError(
            f"{verb} takes a NumPy or CuPy array, not {type(array).__name__}; "
            "of a Tensor pass tensor.data, of numbers np.array(numbers)"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{verb} does not take a masked array; pass array.data, or the filled one")
    if array.dtype.hasobject:
        raise TypeError(f"{verb} takes arrays of plain items, not of dtype {array.dtype}")
    if written and not is_cupy(array) and not array.flags.writeable:
        raise ValueError(f"{verb} writes into its array, and this one is read-only; pass a copy")
    return array


class Staged:
    """A user's array as the algorithms see it: on the host, flat, contiguous.

    It is the array's own memory where that is so already, else a copy made here and now.

    Args:
        array: Of any strides, on any device.

    Attributes:
        flat: Of shape (array.size,).
    """

    def __init__(self, array: Array) -> None:
        self._array = array
        host = to_host(array)
        self._shared = host is array and bool(host.flags.c_contiguous)
        self.flat: Array = np.ascontiguousarray(host).reshape(-1)

    def write_back(self) -> None:
        """Sees to it that the user's array has the values of `flat`."""
        if not self._shared:
            copy_into(self._array, self.flat.reshape(self._array.shape))


def as_bytes(flat: Array) -> Buffer:
    """Returns the bytes of a contiguous array, not copied.

    >>> as_bytes(np.array([1, 2], np.int16)).nbytes
    4
    """
    octets: Any = flat.reshape(-1).view(np.uint8)
    return memoryview(octets)


def from_bytes(data: Buffer, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Returns a writable array over bytes that arrived.

    Raises:
        DecodeError: They are too few or too many.

    >>> from_bytes(bytearray(4), np.dtype(np.int16), (2,))
    array([0, 0], dtype=int16)
    """
    view = memoryview(data)
    if view.nbytes != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise DecodeError(f"{view.nbytes} bytes arrived for an array of shape {shape} and {dtype}")
    if view.readonly:
        view = memoryview(copy_of(view))
    return np.ndarray(shape, dtype, view)
