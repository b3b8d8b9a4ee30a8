"""Python's operators on Tensors, each by way of the NumPy function that it means."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from telegrad.arrays import is_sparse, sparse_product
from telegrad.autograd.dispatch import ENTRIES

if TYPE_CHECKING:
    from telegrad.autograd.tensor import Tensor

__all__ = ["ComparisonOperators", "Operators", "iterate"]

# Looked up in the table itself: a call between is felt in graphs of small arrays.
_ENTRIES: Final[Mapping[object, Callable[..., Tensor]]] = ENTRIES


class Operators:
    """Arithmetic and indexing; recorded."""

    __slots__ = ()

    def __add__(self, other: Any) -> Tensor:
        return _ENTRIES[np.add](self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _ENTRIES[np.add](other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _ENTRIES[np.subtract](self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _ENTRIES[np.subtract](other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _ENTRIES[np.multiply](self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _ENTRIES[np.multiply](other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _ENTRIES[np.divide](self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _ENTRIES[np.divide](other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return _ENTRIES[np.floor_divide](self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _ENTRIES[np.floor_divide](other, self)

    def __mod__(self, other: Any) -> Tensor:
        return _ENTRIES[np.remainder](self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return _ENTRIES[np.remainder](other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __pow__(self, other: Any) -> Tensor:
        return _ENTRIES[np.power](self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _ENTRIES[np.power](other, self)

    def __matmul__(self, other: Any) -> Tensor:
        if not isinstance(other, Operators) and is_sparse(other):
            turned = _ENTRIES[np.transpose](self)  # of a vector itself
            product = _ENTRIES[sparse_product](turned, matrix=other.T)
            return _ENTRIES[np.transpose](product)
        return _ENTRIES[np.matmul](self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        if is_sparse(other):
            return _ENTRIES[sparse_product](self, matrix=other)
        return _ENTRIES[np.matmul](other, self)

    def __neg__(self) -> Tensor:
        return _ENTRIES[np.negative](self)

    def __pos__(self) -> Tensor:
        return _ENTRIES[np.positive](self)

    def __abs__(self) -> Tensor:
        return _ENTRIES[np.absolute](self)

    def __getitem__(self, index: Any) -> Tensor:
        return _ENTRIES[operator.getitem](self, index=index)


class ComparisonOperators:
    """Comparison and bitwise operators, elementwise and never recorded; the hash is identity's."""

    __slots__ = ()

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return _ENTRIES[np.equal](self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return _ENTRIES[np.not_equal](self, other)

    def __lt__(self, other: Any) -> Tensor:
        return _ENTRIES[np.less](self, other)

    def __le__(self, other: Any) -> Tensor:
        return _ENTRIES[np.less_equal](self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _ENTRIES[np.greater](self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _ENTRIES[np.greater_equal](self, other)

    def __invert__(self) -> Tensor:
        return _ENTRIES[np.invert](self)

    def __and__(self, other: Any) -> Tensor:
        return _ENTRIES[np.bitwise_and](self, other)

    def __rand__(self, other: Any) -> Tensor:
        return _ENTRIES[np.bitwise_and](other, self)

    def __or__(self, other: Any) -> Tensor:
        return _ENTRIES[np.bitwise_or](self, other)

    def __ror__(self, other: Any) -> Tensor:
        return _ENTRIES[np.bitwise_or](other, self)

    def __xor__(self, other: Any) -> Tensor:
        return _ENTRIES[np.bitwise_xor](self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return _ENTRIES[np.bitwise_xor](other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return _ENTRIES[np.left_shift](self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return _ENTRIES[np.left_shift](other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return _ENTRIES[np.right_shift](self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return _ENTRIES[np.right_shift](other, self)

    def __contains__(self, item: object) -> bool:
        return bool((self == item).any())

    def __hash__(self) -> int:
        return object.__hash__(self)


def iterate(tensor: Tensor) -> Iterator[Tensor]:
    """Returns the items of `tensor` along its first axis, one after the other.

    Raises:
        TypeError: It has no axes.
    """
    if tensor.ndim == 0:
        raise TypeError("a tensor without axes has no items to go through; t.item() is its number")
    return (tensor[i] for i in range(len(tensor)))
