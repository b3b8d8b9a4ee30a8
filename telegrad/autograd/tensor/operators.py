"""Python's operators on Tensors; each calls the NumPy function that it stands for.

`TensorT` is the type of their results: Tensor, which inherits them in a file above this one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from operator import setitem
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from telegrad.arrays import is_sparse, sparse_product
from telegrad.autograd.graph.dispatch import ENTRIES, dispatch
from telegrad.autograd.graph.grad_mode import is_grad_enabled
from telegrad.autograd.tensor.interchange import ArrayHolder
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from typing import Self

    from telegrad.autograd.graph.node import Edge

__all__ = [
    "ComparisonOperators",
    "InPlaceOperators",
    "Operators",
]

TensorT = TypeVar("TensorT")


class Operators(Generic[TensorT]):
    """The arithmetic and indexing operators, which are recorded."""

    __slots__ = ()

    def __add__(self, other: Any) -> TensorT:
        return ENTRIES[np.add](self, other)

    def __radd__(self, other: Any) -> TensorT:
        return ENTRIES[np.add](other, self)

    def __sub__(self, other: Any) -> TensorT:
        return ENTRIES[np.subtract](self, other)

    def __rsub__(self, other: Any) -> TensorT:
        return ENTRIES[np.subtract](other, self)

    def __mul__(self, other: Any) -> TensorT:
        return ENTRIES[np.multiply](self, other)

    def __rmul__(self, other: Any) -> TensorT:
        return ENTRIES[np.multiply](other, self)

    def __truediv__(self, other: Any) -> TensorT:
        return ENTRIES[np.divide](self, other)

    def __rtruediv__(self, other: Any) -> TensorT:
        return ENTRIES[np.divide](other, self)

    def __floordiv__(self, other: Any) -> TensorT:
        return ENTRIES[np.floor_divide](self, other)

    def __rfloordiv__(self, other: Any) -> TensorT:
        return ENTRIES[np.floor_divide](other, self)

    def __mod__(self, other: Any) -> TensorT:
        return ENTRIES[np.remainder](self, other)

    def __rmod__(self, other: Any) -> TensorT:
        return ENTRIES[np.remainder](other, self)

    def __divmod__(self, other: Any) -> tuple[TensorT, TensorT]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[TensorT, TensorT]:
        return other // self, other % self

    def __pow__(self, other: Any) -> TensorT:
        return ENTRIES[np.power](self, other)

    def __rpow__(self, other: Any) -> TensorT:
        return ENTRIES[np.power](other, self)

    def __matmul__(self, other: Any) -> TensorT:
        if not isinstance(other, Operators) and is_sparse(other):
            turned: Any = ENTRIES[np.transpose](self)  # a vector stays as it is
            product: Any = ENTRIES[sparse_product](turned, matrix=other.T)
            return ENTRIES[np.transpose](product)
        return ENTRIES[np.matmul](self, other)

    def __rmatmul__(self, other: Any) -> TensorT:
        if is_sparse(other):
            return ENTRIES[sparse_product](self, matrix=other)
        return ENTRIES[np.matmul](other, self)

    def __neg__(self) -> TensorT:
        return ENTRIES[np.negative](self)

    def __pos__(self) -> TensorT:
        return ENTRIES[np.positive](self)

    def __abs__(self) -> TensorT:
        return ENTRIES[np.absolute](self)

    def __getitem__(self, index: Any) -> TensorT:
        return ENTRIES[operator.getitem](self, index=index)


class ComparisonOperators(Generic[TensorT]):
    """Comparison and bitwise operators, elementwise and never recorded; the hash is by identity."""

    __slots__ = ()

    def __eq__(self, other: object) -> TensorT:  # type: ignore[override]
        return ENTRIES[np.equal](self, other)

    def __ne__(self, other: object) -> TensorT:  # type: ignore[override]
        return ENTRIES[np.not_equal](self, other)

    def __lt__(self, other: Any) -> TensorT:
        return ENTRIES[np.less](self, other)

    def __le__(self, other: Any) -> TensorT:
        return ENTRIES[np.less_equal](self, other)

    def __gt__(self, other: Any) -> TensorT:
        return ENTRIES[np.greater](self, other)

    def __ge__(self, other: Any) -> TensorT:
        return ENTRIES[np.greater_equal](self, other)

    def __invert__(self) -> TensorT:
        return ENTRIES[np.invert](self)

    def __and__(self, other: Any) -> TensorT:
        return ENTRIES[np.bitwise_and](self, other)

    def __rand__(self, other: Any) -> TensorT:
        return ENTRIES[np.bitwise_and](other, self)

    def __or__(self, other: Any) -> TensorT:
        return ENTRIES[np.bitwise_or](self, other)

    def __ror__(self, other: Any) -> TensorT:
        return ENTRIES[np.bitwise_or](other, self)

    def __xor__(self, other: Any) -> TensorT:
        return ENTRIES[np.bitwise_xor](self, other)

    def __rxor__(self, other: Any) -> TensorT:
        return ENTRIES[np.bitwise_xor](other, self)

    def __lshift__(self, other: Any) -> TensorT:
        return ENTRIES[np.left_shift](self, other)

    def __rlshift__(self, other: Any) -> TensorT:
        return ENTRIES[np.left_shift](other, self)

    def __rshift__(self, other: Any) -> TensorT:
        return ENTRIES[np.right_shift](self, other)

    def __rrshift__(self, other: Any) -> TensorT:
        return ENTRIES[np.right_shift](other, self)

    def __contains__(self, item: object) -> bool:
        found: Any = self == item
        return bool(found.any())

    def __hash__(self) -> int:
        return object.__hash__(self)


# -- operators that change the Tensor itself -----------------------------------------------------
#
# If nothing is recorded, they write into the array as NumPy's operators do, and count its version.
# If the operation is recorded, the Tensor takes over the result's array and place in the graph.


class InPlaceOperators(ArrayHolder):
    """The operators that change the Tensor: `+=` and the like, and assignment to items."""

    __slots__ = ()

    _edge: Edge | None  # these three are Tensor's
    _requires_grad: bool
    _is_view: bool

    @property
    def requires_grad(self) -> bool:
        """True if operations on this are recorded."""
        raise NotImplementedError

    def _move_to(self, result: InPlaceOperators) -> None:
        """Takes over the array and the place in the graph of `result`, cast to this dtype.

        Raises:
            AutogradError: This is a leaf that needs a gradient, or a view.
            ValueError: `result` has another shape.
        """
        if self._requires_grad:
            raise AutogradError(
                "a leaf that needs a gradient cannot be changed in place while operations are "
                "recorded; use no_grad(), assign t.data, or write t = t + x"
            )
        if self._is_view:
            raise AutogradError(
                "a view of another tensor cannot be changed in place while operations are "
                "recorded, as the other one would not see it; write t = t + x, and for "
                "t[index] += x: t[index] = t[index] + x"
            )
        if result.shape != self.shape:
            raise ValueError(f"shape {self.shape} cannot hold a result of shape {result.shape}")
        if result.dtype != self.dtype:
            result = ENTRIES[np.astype](result, self.dtype)
        self._value = result._value
        self._edge = result._edge  # type: ignore[misc]  # Tensor has the slot

    def _change(self, function: Any, *operands: Any) -> None:
        """Replaces the value by `function(self, *operands)`, as `+=` does with `np.add`.

        Raises:
            AutogradError: The change would be recorded, and this is a leaf that needs a gradient,
                or a view.
            TypeError: The change would be recorded, and this dtype cannot hold the result.
        """
        if self._records(operands):
            result: object = ENTRIES[function](self, *operands)
            if not isinstance(result, InPlaceOperators):
                raise TypeError(
                    f"a tensor cannot become a {type(result).__name__} in place; "
                    "write t = t + x instead of t += x"
                )
            if not np.can_cast(result.dtype, self.dtype, "same_kind"):
                raise TypeError(
                    f"a tensor of {self.dtype} cannot hold a result of {result.dtype} in place; "
                    "write t = t + x instead of t += x"
                )
            self._move_to(result)
            return
        value = self._value
        arrays = [x._value.array if isinstance(x, InPlaceOperators) else x for x in operands]
        function(value.array, *arrays, out=value.array)
        value.bump()

    def _assign(self, index: Any, value: Any) -> None:
        """Assigns `value` to the items at `index`, as `t[index] = value` does.

        Raises:
            AutogradError: The change would be recorded, and this is a leaf that needs a gradient,
                or a view.
        """
        if self._records((value,)):
            self._move_to(ENTRIES[setitem](self, value, index=index))
            return
        held = self._value
        held.array[_unwrap(index)] = _unwrap(value)
        held.bump()

    def sort(
        self,
        axis: int = -1,
        kind: str | None = None,
        order: None = None,
        *,
        stable: bool | None = None,
    ) -> None:
        """Sorts this in place, as NumPy's method does; `np.sort(t)` returns a new Tensor.

        Raises:
            AutogradError: The change would be recorded, and this is a leaf that needs a gradient,
                or a view.
        """
        given = {"kind": kind, "order": order, "stable": stable}
        self._rearrange(np.sort, axis=axis, **{n: x for n, x in given.items() if x is not None})

    def partition(self, kth: Any, axis: int = -1) -> None:
        """Partitions this in place, as NumPy's method does; `np.partition(t)` returns a new Tensor.

        Raises:
            AutogradError: The change would be recorded, and this is a leaf that needs a gradient,
                or a view.
        """
        self._rearrange(np.partition, kth=kth, axis=axis)

    def fill(self, value: Any) -> None:
        """Sets every item to `value`.

        Raises:
            AutogradError: The change would be recorded, and this is a leaf that needs a gradient,
                or a view.
        """
        self._assign(..., value)

    def _rearrange(self, function: Any, **options: Any) -> None:
        if self._records(()):
            self._move_to(dispatch(function, (self,), options))
            return
        held = self._value
        held.array[...] = function(held.array, **options)
        held.bump()

    def _records(self, operands: Iterable[Any]) -> bool:
        if not is_grad_enabled():
            return False
        needing = (x.requires_grad for x in operands if isinstance(x, InPlaceOperators))
        return self.requires_grad or any(needing)

    def __iadd__(self, other: Any) -> Self:
        self._change(np.add, other)
        return self

    def __isub__(self, other: Any) -> Self:
        self._change(np.subtract, other)
        return self

    def __imul__(self, other: Any) -> Self:
        self._change(np.multiply, other)
        return self

    def __itruediv__(self, other: Any) -> Self:
        self._change(np.divide, other)
        return self

    def __ifloordiv__(self, other: Any) -> Self:
        self._change(np.floor_divide, other)
        return self

    def __imod__(self, other: Any) -> Self:
        self._change(np.remainder, other)
        return self

    def __imatmul__(self, other: Any) -> Self:
        self._change(np.matmul, other)
        return self

    def __iand__(self, other: Any) -> Self:
        self._change(np.bitwise_and, other)
        return self

    def __ior__(self, other: Any) -> Self:
        self._change(np.bitwise_or, other)
        return self

    def __ixor__(self, other: Any) -> Self:
        self._change(np.bitwise_xor, other)
        return self

    def __ilshift__(self, other: Any) -> Self:
        self._change(np.left_shift, other)
        return self

    def __irshift__(self, other: Any) -> Self:
        self._change(np.right_shift, other)
        return self

    def __ipow__(self, other: Any) -> Self:
        self._change(np.power, other)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self._assign(index, value)


def _unwrap(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_unwrap(part) for part in index)
    return index._value.array if isinstance(index, InPlaceOperators) else index
