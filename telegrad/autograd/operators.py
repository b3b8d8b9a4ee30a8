"""Python's operators on Tensors, each by way of the NumPy function that it means."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from telegrad.autograd.dispatch import call

if TYPE_CHECKING:
    from telegrad.autograd.tensor import Tensor

__all__ = ["ComparisonOperators", "Operators", "iterate"]


class Operators:
    """Arithmetic and indexing; recorded."""

    __slots__ = ()

    def __add__(self, other: Any) -> Tensor:
        return call(np.add, self, other)

    def __radd__(self, other: Any) -> Tensor:
        return call(np.add, other, self)

    def __sub__(self, other: Any) -> Tensor:
        return call(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return call(np.subtract, other, self)

    def __mul__(self, other: Any) -> Tensor:
        return call(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return call(np.multiply, other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return call(np.divide, self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return call(np.divide, other, self)

    def __pow__(self, other: Any) -> Tensor:
        return call(np.power, self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return call(np.power, other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return call(np.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return call(np.matmul, other, self)

    def __neg__(self) -> Tensor:
        return call(np.negative, self)

    def __pos__(self) -> Tensor:
        return call(np.positive, self)

    def __abs__(self) -> Tensor:
        return call(np.absolute, self)

    def __getitem__(self, index: Any) -> Tensor:
        return call(operator.getitem, self, index=index)


class ComparisonOperators:
    """Elementwise comparison: Tensors of bool, never recorded. `==` too; the hash is identity's."""

    __slots__ = ()

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return call(np.equal, self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return call(np.not_equal, self, other)

    def __lt__(self, other: Any) -> Tensor:
        return call(np.less, self, other)

    def __le__(self, other: Any) -> Tensor:
        return call(np.less_equal, self, other)

    def __gt__(self, other: Any) -> Tensor:
        return call(np.greater, self, other)

    def __ge__(self, other: Any) -> Tensor:
        return call(np.greater_equal, self, other)

    def __invert__(self) -> Tensor:
        return call(np.invert, self)

    def __and__(self, other: Any) -> Tensor:
        return call(np.bitwise_and, self, other)

    def __or__(self, other: Any) -> Tensor:
        return call(np.bitwise_or, self, other)

    def __hash__(self) -> int:
        return object.__hash__(self)


def iterate(tensor: Tensor) -> Iterator[Tensor]:
    """Yields the items of `tensor` along its first axis."""
    for i in range(len(tensor)):
        yield tensor[i]
