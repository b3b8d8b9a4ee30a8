"""Python's operators on Tensors; each calls the NumPy function that it stands for.

`TensorT` is the type of their results: Tensor, which inherits them in a file above this one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from operator import setitem
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from telegrad.arrays import is_sparse, sparse_product
from telegrad.autograd.graph.dispatch import TABLE, dispatch
from telegrad.autograd.graph.grad_mode import is_grad_enabled
from telegrad.autograd.tensor.interchange import ArrayHolder
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from telegrad.autograd.graph.node import Edge

ClassT = TypeVar("ClassT")
TensorT = TypeVar("TensorT")
InPlaceT = TypeVar("InPlaceT", bound="InPlaceOperators")


def _left(function: np.ufunc) -> Callable[[Operators[TensorT], Any], TensorT]:
    """Returns the method of `tensor OP other`, which calls the replacement of a NumPy function."""

    def operate(self: Operators[TensorT], other: Any) -> TensorT:
        return TABLE[function](self, other)

    operate.__doc__ = f"Returns `np.{function.__name__}(self, other)`."
    return operate


def _right(function: np.ufunc) -> Callable[[Operators[TensorT], Any], TensorT]:
    """Returns the method of `other OP tensor`, for an `other` that does not know Tensors."""

    def operate(self: Operators[TensorT], other: Any) -> TensorT:
        return TABLE[function](other, self)

    operate.__doc__ = f"Returns `np.{function.__name__}(other, self)`."
    return operate


def _alone(function: np.ufunc) -> Callable[[Operators[TensorT]], TensorT]:
    """Returns the method of an operator with one operand."""

    def operate(self: Operators[TensorT]) -> TensorT:
        return TABLE[function](self)

    operate.__doc__ = f"Returns `np.{function.__name__}(self)`."
    return operate


def _named(made: type[ClassT]) -> type[ClassT]:
    """Gives methods that were made by the functions here the names that they have in a class."""
    for name, method in vars(made).items():
        if isinstance(method, FunctionType) and method.__name__ == "operate":
            method.__name__, method.__qualname__ = name, f"{made.__qualname__}.{name}"
    return made


@_named
class Operators(Generic[TensorT]):
    """The operators that make a new Tensor.

    Arithmetic and indices are recorded, comparisons and bit operators never. The hash is by
    identity.
    """

    __slots__ = ()

    __add__, __radd__ = _left(np.add), _right(np.add)
    __sub__, __rsub__ = _left(np.subtract), _right(np.subtract)
    __mul__, __rmul__ = _left(np.multiply), _right(np.multiply)
    __truediv__, __rtruediv__ = _left(np.divide), _right(np.divide)
    __floordiv__, __rfloordiv__ = _left(np.floor_divide), _right(np.floor_divide)
    __mod__, __rmod__ = _left(np.remainder), _right(np.remainder)
    __pow__, __rpow__ = _left(np.power), _right(np.power)
    __neg__, __pos__, __abs__ = _alone(np.negative), _alone(np.positive), _alone(np.absolute)

    __lt__, __le__ = _left(np.less), _left(np.less_equal)
    __gt__, __ge__ = _left(np.greater), _left(np.greater_equal)
    __and__, __rand__ = _left(np.bitwise_and), _right(np.bitwise_and)
    __or__, __ror__ = _left(np.bitwise_or), _right(np.bitwise_or)
    __xor__, __rxor__ = _left(np.bitwise_xor), _right(np.bitwise_xor)
    __lshift__, __rlshift__ = _left(np.left_shift), _right(np.left_shift)
    __rshift__, __rrshift__ = _left(np.right_shift), _right(np.right_shift)
    __invert__ = _alone(np.invert)

    # Written out, since some type checkers give an `__eq__` that is assigned the type of object's.

    def __eq__(self, other: object) -> TensorT:  # type: ignore[override]
        """Returns `np.equal(self, other)`."""
        return TABLE[np.equal](self, other)

    def __ne__(self, other: object) -> TensorT:  # type: ignore[override]
        """Returns `np.not_equal(self, other)`."""
        return TABLE[np.not_equal](self, other)

    def __divmod__(self, other: Any) -> tuple[TensorT, TensorT]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[TensorT, TensorT]:
        return other // self, other % self

    def __matmul__(self, other: Any) -> TensorT:
        if not isinstance(other, Operators) and is_sparse(other):
            turned: Any = TABLE[np.transpose](self)  # a vector stays as it is
            product: Any = TABLE[sparse_product](turned, matrix=other.T)
            return TABLE[np.transpose](product)
        return TABLE[np.matmul](self, other)

    def __rmatmul__(self, other: Any) -> TensorT:
        if is_sparse(other):
            return TABLE[sparse_product](self, matrix=other)
        return TABLE[np.matmul](other, self)

    def __getitem__(self, index: Any) -> TensorT:
        return TABLE[operator.getitem](self, index=index)

    def __contains__(self, item: object) -> bool:
        found: Any = self == item
        return bool(found.any())

    def __hash__(self) -> int:
        return object.__hash__(self)


# -- operators that change the Tensor itself -----------------------------------------------------
#
# If nothing is recorded, they write into the array as NumPy's operators do, and count its version.
# If the operation is recorded, the Tensor takes over the result's array and place in the graph.


def _in_place(function: np.ufunc) -> Callable[[InPlaceT, Any], InPlaceT]:
    """Returns the method of `tensor OP= other`."""

    def operate(self: InPlaceT, other: Any) -> InPlaceT:
        self._change(function, other)
        return self

    operate.__doc__ = f"Replaces the items by those of `np.{function.__name__}(self, other)`."
    return operate


@_named
class InPlaceOperators(ArrayHolder):
    """The operators that change the Tensor: `+=` and the like, and assignment to items."""

    __slots__ = ()

    _edge: Edge | None  # these three are Tensor's
    _requires_grad: bool
    _is_view: bool

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
            result = TABLE[np.astype](result, self.dtype)
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
            result: object = TABLE[function](self, *operands)
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
            self._move_to(TABLE[setitem](self, value, index=index))
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

    __iadd__ = _in_place(np.add)
    __isub__ = _in_place(np.subtract)
    __imul__ = _in_place(np.multiply)
    __itruediv__ = _in_place(np.divide)
    __ifloordiv__ = _in_place(np.floor_divide)
    __imod__ = _in_place(np.remainder)
    __imatmul__ = _in_place(np.matmul)
    __iand__ = _in_place(np.bitwise_and)
    __ior__ = _in_place(np.bitwise_or)
    __ixor__ = _in_place(np.bitwise_xor)
    __ilshift__ = _in_place(np.left_shift)
    __irshift__ = _in_place(np.right_shift)
    __ipow__ = _in_place(np.power)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._assign(index, value)


def _unwrap(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_unwrap(part) for part in index)
    return index._value.array if isinstance(index, InPlaceOperators) else index
