"""The operations of a reduction, and users' arrays in the form that algorithms need."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad.arrays import (
    copy_into,
    device_of,
    is_array,
    is_cupy,
    joined_flat,
    namespace,
    to_device,
    to_host,
)
from telegrad.errors import DecodeError
from telegrad.types import Array, Shape
from telegrad.wire import Buffer, copy_of


@final
class PremulSum:
    """The sum of the arrays of all ranks, each multiplied by its rank's factor first.

    Args:
        factor: A number or an array of numbers.

    Attributes:
        name: The name of the operation; factors may differ between ranks and are no part of it.
        factor: The factor, on the host.
    """

    name: Final = "PREMUL_SUM"

    def __init__(self, factor: object) -> None:
        host: Any = to_host(factor) if is_array(factor) else factor
        self.factor: Array = np.array(host)
        if not _is_number(self.factor.dtype, "iufc"):
            raise TypeError(f"factor must be a number or an array of numbers, not {factor!r}")

    def times(self, array: Array) -> Array:
        """Returns a new array: `array` times the factor, in the dtype and on the device of `array`.

        Raises:
            ValueError: As for `exact`.

        >>> PremulSum(2).times(np.array([1, 2], np.int8))
        array([2, 4], dtype=int8)
        """
        factor = self.exact(array.dtype, array.shape)
        xp = namespace(array)
        with np.errstate(all="ignore"):
            product: Any = xp.multiply(array, xp.asarray(factor))
        result: Array = xp.asarray(product).astype(array.dtype, copy=False)
        return result

    def exact(self, dtype: np.dtype[Any], shape: Shape) -> Array:
        """Returns the factor in the dtype of arrays.

        Args:
            dtype: The dtype of the arrays.
            shape: Their shape.

        Raises:
            ValueError: The factor has no exact value in an integer dtype, is complex and the arrays
                are not, or has a shape that does not fit.
        """
        if self.factor.dtype.kind == "c" and dtype.kind != "c":
            raise ValueError(f"a complex factor needs complex arrays, not those of dtype {dtype}")
        with np.errstate(all="ignore"):
            factor: Array = self.factor.astype(dtype)
        if dtype.kind in "iu" and not np.array_equal(factor, self.factor):
            raise ValueError(
                f"PREMUL_SUM of {dtype} would have to be rounded, since the factor has no exact "
                "value in that dtype; reduce array.astype(np.float64)"
            )
        try:
            np.broadcast_to(factor, shape)
        except ValueError:
            raise ValueError(
                f"PREMUL_SUM's factor of shape {factor.shape} does not fit an array of shape "
                f"{shape}"
            ) from None
        return factor


def _is_number(dtype: np.dtype[Any], kinds: str) -> bool:
    return dtype.kind in kinds or (dtype.names is None and dtype.type.__module__ == "ml_dtypes")


class ReduceOp(enum.Enum):
    """The operation that combines the arrays of all ranks, item by item, in the arrays' dtype.

    AVG is the sum divided by the number of ranks, for floating-point and complex dtypes. MIN and
    MAX propagate a NaN; for booleans they mean "all" and "any". BAND, BOR and BXOR combine the bits
    of integers, or booleans. `ReduceOp.PREMUL_SUM(factor)` is the sum of arrays that are multiplied
    by a factor first.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.array([float(group.rank)])
        ...     collectives.all_reduce(x, collectives.ReduceOp.MAX)
        ...     return x.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [1.0, 1.0]
    """

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    @staticmethod
    def PREMUL_SUM(factor: object) -> PremulSum:
        """Returns the operation that sums arrays, each multiplied by its rank's factor first.

        Args:
            factor: A number, or an array that fits the reduced array by NumPy's rules for shapes.
                It is used in the dtype of the array, and may differ between ranks. Integer arrays
                need a factor that is exact in their dtype.

        Raises:
            TypeError: The factor is no number.
        """
        return PremulSum(factor)


Reduction: TypeAlias = ReduceOp | PremulSum


_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
_ORDERED = frozenset({ReduceOp.MIN, ReduceOp.MAX})
_BITWISE = frozenset({ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR})

# With fewer bytes an item, the dtype may have no exact value for the number of ranks.
_EXACT_COUNT_BYTES = 4


def check_reducible(op: object, dtype: np.dtype[Any]) -> Reduction:
    """Returns `op` if it has a meaning for items of `dtype`.

    Raises:
        TypeError: `op` is no ReduceOp, or the items are no numbers.
        ValueError: `op` has no meaning for this dtype.

    >>> check_reducible(ReduceOp.SUM, np.dtype("float32"))
    <ReduceOp.SUM: 'sum'>
    """
    if not isinstance(op, ReduceOp | PremulSum):
        raise TypeError(f"op must be a ReduceOp, for instance ReduceOp.SUM, not {op!r}")
    kind = dtype.kind
    if not _is_number(dtype, "biufc"):
        raise TypeError(f"arrays of numbers can be reduced, not those of dtype {dtype}")
    if op in _BITWISE and kind not in "biu":
        raise ValueError(f"{op.name} has no meaning for {dtype}; it combines the bits of integers")
    if kind == "b" and op not in _ORDERED | _BITWISE:
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


def combining(op: Reduction) -> ReduceOp:
    """Returns the operation that combines arrays; PREMUL_SUM sums what was multiplied before."""
    return op if isinstance(op, ReduceOp) else ReduceOp.SUM


def combine(op: ReduceOp, into: Array, other: Array) -> None:
    """Combines `other` into `into`; overflow is silent, as on one rank."""
    with np.errstate(all="ignore"):
        _UFUNCS[op](into, other, out=into)


def combine_all(op: ReduceOp, arrays: Sequence[Array], out: Array) -> None:
    """Writes the reduction of the arrays of all ranks to `out`, in their order."""
    if len(arrays) == 1:
        out[...] = arrays[0]
        return
    with np.errstate(all="ignore"):
        _UFUNCS[op](arrays[0], arrays[1], out=out)
    for other in arrays[2:]:
        combine(op, out, other)
    finish(op, out, len(arrays))


def finish(op: ReduceOp, into: Array, n: int) -> None:
    """Turns the combined arrays of n ranks into the reduction, in place."""
    if op is not ReduceOp.AVG:
        return
    divisor: Any = n if into.dtype.itemsize >= _EXACT_COUNT_BYTES else np.float64(n)
    with np.errstate(all="ignore"):
        np.divide(into, divisor, out=into, casting="unsafe")


# -- arrays of users as flat host arrays, and flat host arrays as bytes --------------------------


def check_array(verb: str, array: object, *, written: bool) -> Array:
    """Returns `array` if a collective operation can use it.

    Args:
        verb: The operation, for the error.
        array: The user's argument.
        written: True if the operation writes into it.

    Raises:
        TypeError: `array` is no array, or has items of an unusable dtype.
        ValueError: The array is read-only and would be written.
    """
    if type(array) is not np.ndarray and not is_array(array):
        raise TypeError(
            f"{verb} takes a NumPy or CuPy array, not {type(array).__name__}; of a Tensor pass "
            "tensor.data, of numbers np.array(numbers); a RowSparse is summed by "
            "telegrad.parallel.all_reduce_rows"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{verb} does not take a masked array; pass array.data, or the filled one")
    if array.dtype.hasobject:
        raise TypeError(f"{verb} takes arrays of plain items, not of dtype {array.dtype}")
    plain = type(array) is np.ndarray or not is_cupy(array)
    if written and plain and not array.flags.writeable:
        raise ValueError(f"{verb} writes into its array, and this one is read-only; pass a copy")
    return array


@final
class Staged:
    """A user's array as algorithms need it: on the host, flat, contiguous.

    It shares the array's own memory if that is possible; otherwise it is a copy, which is made when
    `flat` is asked for first.

    Args:
        array: An array of any strides, on any device.
        factor: The factor by which the values are multiplied, but not those of the user's array.

    Attributes:
        array: The user's array.

    Raises:
        ValueError: The factor does not fit; see `PremulSum.exact`.
    """

    def __init__(self, array: Array, factor: PremulSum | None = None) -> None:
        self.array = array
        self._factor = factor
        if factor is not None:
            factor.exact(array.dtype, array.shape)

    @cached_property
    def flat(self) -> Array:
        """The items, of shape (array.size,); of an array on a GPU copied in the current stream."""
        host = self.array if type(self.array) is np.ndarray else to_host(self.array)
        if self._factor is not None:
            host = self._factor.times(host)
        return np.ascontiguousarray(host).reshape(-1)

    def stage(self) -> None:
        """Makes `flat`, unless it is there."""
        _ = self.flat

    @property
    def shaped(self) -> Array:
        """`flat` in the shape of the user's array."""
        return self.flat.reshape(self.array.shape)

    def to_user(self, array: Array) -> Array:
        """Returns a host array on the device of the user's array."""
        return to_device(array, device_of(self.array))

    def write_back(self) -> None:
        """Copies the values of `flat` into the user's array, unless they share memory."""
        on_host = type(self.array) is np.ndarray or not is_cupy(self.array)
        if not (on_host and np.may_share_memory(self.flat, self.array)):
            copy_into(self.array, self.shaped)


@final
class JoinedArrays(list[Array]):
    """Arrays that lie one after the other in one new array.

    Args:
        flat: That array, of one axis.
        shapes: Their shapes.

    Attributes:
        flat: That array.
    """

    def __init__(self, flat: Array, shapes: Sequence[Shape]) -> None:
        sizes = list(map(math.prod, shapes))
        cut = zip(cut_rows(flat, sizes), shapes, strict=True)
        super().__init__(part.reshape(shape) for part, shape in cut)
        self.flat = flat


def items_of(shapes: Sequence[Shape]) -> int:
    """Returns the items of arrays of some shapes.

    >>> items_of([(2, 3), (), (0, 7)])
    7
    """
    return sum(math.prod(shape) for shape in shapes)


def cut_rows(array: Array, lengths: Sequence[int]) -> list[Array]:
    """Returns views of an array: its first axis, cut into parts of these lengths.

    >>> [part.tolist() for part in cut_rows(np.arange(3), [1, 2])]
    [[0], [1, 2]]
    """
    ends = np.cumsum(lengths).tolist()
    return [array[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def rows_of(parts: Sequence[Array]) -> Array:
    """Returns arrays joined along the first axis; one without axes is a row.

    >>> rows_of([np.array([[1, 2]]), np.array([[3, 4]])])
    array([[1, 2],
           [3, 4]])
    """
    rows = sum(len(part) if part.ndim else 1 for part in parts)
    flat = parts.flat if isinstance(parts, JoinedArrays) else joined_flat(parts)
    return flat.reshape((rows, *parts[0].shape[1:]))


def as_bytes(flat: Array) -> Buffer:
    """Returns the bytes of a contiguous array, without a copy.

    >>> as_bytes(np.array([1, 2], np.int16)).nbytes
    4
    """
    octets: Any = flat.reshape(-1).view(np.uint8)
    return memoryview(octets)


def from_bytes(data: Buffer, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Returns a writable array over bytes that arrived.

    Raises:
        DecodeError: There are too few or too many bytes.

    >>> from_bytes(bytearray(4), np.dtype(np.int16), (2,))
    array([0, 0], dtype=int16)
    """
    view = memoryview(data)
    if view.nbytes != dtype.itemsize * math.prod(shape):
        raise DecodeError(f"{view.nbytes} bytes arrived for an array of shape {shape} and {dtype}")
    if view.readonly:
        view = memoryview(copy_of(view))
    return np.ndarray(shape, dtype, view)
