"""NumPy's array methods on Tensors, each by way of the NumPy function of that name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from telegrad.arrays import to_device
from telegrad.autograd.dispatch import call

if TYPE_CHECKING:
    from telegrad.autograd.tensor import Tensor
    from telegrad.types import DTypeLike

__all__ = ["ArrayMethods"]

Axis: TypeAlias = "int | tuple[int, ...] | None"


class ArrayMethods:
    """Reductions and changes of shape; recorded."""

    __slots__ = ()

    def sum(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """Returns the sum over `axis`; over everything if it is None."""
        return call(np.sum, self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """Returns the mean over `axis`; over everything if it is None."""
        return call(np.mean, self, axis=axis, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """Returns the largest item; where several are, they share its gradient equally."""
        return call(np.max, self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        """Returns the smallest item; where several are, they share its gradient equally."""
        return call(np.min, self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the index of the largest item; an integer Tensor, never recorded."""
        return call(np.argmax, self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the index of the smallest item; an integer Tensor, never recorded."""
        return call(np.argmin, self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None) -> Tensor:
        """Returns whether an item is true; never recorded."""
        return call(np.any, self, axis=axis)

    def all(self, axis: Axis = None) -> Tensor:
        """Returns whether all items are true; never recorded."""
        return call(np.all, self, axis=axis)

    def reshape(self, *shape: Any) -> Tensor:
        """Returns the same items in another shape: `reshape(2, 3)` or `reshape((2, 3))`."""
        return call(np.reshape, self, shape[0] if len(shape) == 1 else shape)

    def ravel(self) -> Tensor:
        """Returns the items in one axis."""
        return call(np.ravel, self)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Returns this without its axes of length 1, or without those named."""
        return call(np.squeeze, self, axis=axis)

    def transpose(self, *axes: Any) -> Tensor:
        """Returns this with its axes reversed, or in the order named."""
        return call(np.transpose, self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Returns this with two axes exchanged."""
        return call(np.swapaxes, self, axis1, axis2)

    def clip(self, low: Any = None, high: Any = None) -> Tensor:
        """Returns this with what lies outside `low` and `high` replaced by them."""
        return call(np.clip, self, low, high)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Returns this in another dtype; its gradient comes back in this one."""
        return call(np.astype, self, dtype)

    def to(self, device: str) -> Tensor:
        """Returns this on `device` (`cpu`, `cuda`, `cuda:<number>`); its gradient comes back here.

        A Tensor that is there already is returned itself.

        Raises:
            ValueError: `device` is no device name.
            RuntimeError: A GPU is asked for and CuPy is not installed.
        """
        return call(to_device, self, device)

    def copy(self) -> Tensor:
        """Returns this in an array of its own."""
        return call(np.copy, self)

    @property
    def T(self) -> Tensor:
        """This with its axes reversed."""
        return call(np.transpose, self)
