"""`RowSparse`: a gradient in which only some rows are not zero."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeGuard, final

import numpy as np

from telegrad import kernels
from telegrad.arrays import add_at, device_name, device_of, is_array, namespace, to_device
from telegrad.errors import AutogradError
from telegrad.types import Array, DTypeLike, Shape


@final
class RowSparse:
    """An immutable array in which all rows are zero except the given ones.

    `nn.Embedding(sparse=True)` stores such gradients in `weight.grad`: a table may have a million
    rows, of which a step uses a hundred.

    Args:
        rows: The indices of the rows, a vector of integers from 0. Values of equal indices add.
        values: One array per row: shape (len(rows), *shape[1:]).
        shape: The shape of the whole array, with at least one axis.

    Raises:
        AutogradError: The shapes do not fit each other.

    >>> gradient = RowSparse(np.array([2, 0, 2]), np.array([[1.0], [2.0], [3.0]]), (3, 1))
    >>> gradient.to_dense().tolist()
    [[2.0], [0.0], [4.0]]
    >>> (gradient + gradient).coalesce()
    RowSparse(rows=[0 2], shape=(3, 1), dtype=float64)
    """

    __slots__ = ("rows", "shape", "values")
    __array_ufunc__ = None  # NumPy then leaves `array + gradient` to `__radd__`

    def __init__(self, rows: Array, values: Array, shape: Shape) -> None:
        self.rows = rows
        self.values = values
        self.shape = tuple(shape)
        if not self.shape or rows.ndim != 1 or values.shape != (len(rows), *self.shape[1:]):
            raise AutogradError(
                f"{rows.shape} rows with values of shape {values.shape} make no RowSparse of shape "
                f"{self.shape}; values have the shape (rows, *shape[1:])"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the items."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of items of the whole array."""
        return math.prod(self.shape)

    @property
    def device(self) -> str:
        """The device of the values: `cpu`, or `cuda:0`, `cuda:1`, ..."""
        return device_of(self.values)

    @property
    def requires_grad(self) -> bool:
        """False, as a RowSparse is never recorded. Under `create_graph` gradients are dense."""
        return False

    def coalesce(self) -> RowSparse:
        """Returns an equal RowSparse with each row once, in ascending order."""
        xp = namespace(self.values)
        rows, places = xp.unique(self.rows, return_inverse=True)
        values = kernels.add_rows(self.values, places.ravel(), (len(rows), *self.shape[1:]))
        return RowSparse(rows, values, self.shape)

    def to_dense(self) -> Array:
        """Returns the whole array."""
        return kernels.add_rows(self.values, self.rows, self.shape)

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> RowSparse:
        """Returns this in another dtype; itself if it has that dtype and `copy` is False."""
        if not copy and self.dtype == dtype:
            return self
        return RowSparse(self.rows, self.values.astype(dtype), self.shape)

    def to(self, device: str) -> RowSparse:
        """Returns this on `device`, as `Tensor.to` does; itself if it is already there."""
        if self.device == device_name(device):
            return self
        moved = (to_device(self.rows, device), to_device(self.values, device))
        return RowSparse(*moved, self.shape)

    def copy(self) -> RowSparse:
        """Returns a copy of this."""
        return RowSparse(self.rows.copy(), self.values.copy(), self.shape)

    def __add__(self, other: Any) -> Any:
        """Returns the sum: a RowSparse plus a RowSparse joins the rows; plus an array, an array."""
        if isinstance(other, RowSparse):
            return self._joined(other)
        if is_array(other) and other.shape == self.shape:
            whole = other.astype(np.result_type(other.dtype, self.dtype))  # a copy
            add_at(whole, self.rows, self.values.astype(whole.dtype, copy=False))
            return whole
        return NotImplemented

    __radd__ = __add__

    def _joined(self, other: RowSparse) -> RowSparse:
        if other.shape != self.shape:
            raise AutogradError(f"gradients of shapes {self.shape} and {other.shape} do not add")
        xp = namespace(self.values)
        rows = xp.concatenate((self.rows, other.rows))
        joined = RowSparse(rows, xp.concatenate((self.values, other.values)), self.shape)
        # With more rows than the whole array has, this would take more memory than that array.
        return joined.coalesce() if len(rows) > self.shape[0] else joined

    def __mul__(self, factor: Any) -> Any:
        """Multiplies this by a number, as gradient clipping does."""
        return self._scaled(operator.mul, factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        """Divides this by a number, as averaging does."""
        return self._scaled(operator.truediv, divisor)

    def __neg__(self) -> Any:
        return self * -1

    def _scaled(self, function: Callable[[Any, Any], Any], number: Any) -> Any:
        if np.ndim(number) != 0 and not (is_array(number) and number.ndim == 0):
            return NotImplemented
        values = function(self.values, number).astype(self.dtype)
        return RowSparse(self.rows, values, self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise TypeError("a RowSparse does not become an array by itself; write to_dense()")

    def __reduce__(self) -> tuple[Any, ...]:
        return RowSparse, (self.rows, self.values, self.shape)

    def __repr__(self) -> str:
        return f"RowSparse(rows={self.rows}, shape={self.shape}, dtype={self.dtype})"


def is_row_sparse(gradient: object) -> TypeGuard[RowSparse]:
    """Returns True if `gradient` is a RowSparse."""
    return isinstance(gradient, RowSparse)
