"""`ArrayHolder`: what a Tensor tells of its array."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

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

    @property
    def itemsize(self) -> int:
        """The bytes of one item."""
        return self._value.array.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all items."""
        return self.size * self.itemsize

    def item(self, *place: Any) -> Any:
        """Returns one item as a Python number: the only one, or that at `place`.

        Raises:
            ValueError: No place is given and there is not exactly one.
            IndexError: There is no such place.
        """
        array: Any = self._value.array
        if place:
            index = place[0] if len(place) == 1 else place
            array = array[index] if isinstance(index, tuple) else array.reshape(-1)[index]
        return array.item()

    def tolist(self) -> Any:
        """Returns the items as nested lists of Python numbers; of no axes, the number."""
        return self._value.array.tolist()

    def __len__(self) -> int:
        return len(self._value.array)

    def __bool__(self) -> bool:
        return bool(self._value.array)

    def __complex__(self) -> complex:
        return complex(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())
