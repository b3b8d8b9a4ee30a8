"""`ArrayHolder`: what a Tensor tells of its array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

from telegrad.arrays import device_of

if TYPE_CHECKING:
    import numpy as np

    from telegrad.autograd.value import Value
    from telegrad.types import Shape

__all__ = ["ArrayHolder"]


class ArrayHolder:
    """Holds an array with its version, and answers for it."""

    __slots__ = ("_value",)

    _value: Value

    @property
    def value(self) -> Value:
        """The array with its version, read as one."""
        return self._value

    @property
    def shape(self) -> Shape:
        """The lengths of its axes."""
        return self._value.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its items."""
        return self._value.array.dtype

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self._value.array.ndim

    @property
    def size(self) -> int:
        """The number of its items."""
        return self._value.array.size

    @property
    def device(self) -> str:
        """Where the array lives: `cpu`, or `cuda:0`, `cuda:1`, ..."""
        return device_of(self._value.array)

    def item(self) -> Any:
        """Returns the only item as a Python number.

        Raises:
            ValueError: There is not exactly one.
        """
        return self._value.array.item()

    def __len__(self) -> int:
        return len(self._value.array)

    def __bool__(self) -> bool:
        return bool(self._value.array)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        item: SupportsIndex = self.item()
        return item.__index__()
