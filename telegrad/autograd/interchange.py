"""Tensors as arrays of other libraries: NumPy's protocols, DLPack, the CUDA array interface.

All of them share the memory. What others write into it is not noticed by a recorded graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import is_cupy, sparse_product_asks, to_device, to_host
from telegrad.autograd.array_holder import ArrayHolder
from telegrad.autograd.grad_mode import is_grad_enabled
from telegrad.errors import AutogradError
from telegrad.types import Array

__all__ = ["Interchange"]


class Interchange(ArrayHolder):
    """Ways out of telegrad; shut for what needs a gradient, outside `no_grad()`."""

    __slots__ = ()

    @property
    def requires_grad(self) -> bool:
        """Whether operations on it are recorded."""
        raise NotImplementedError

    def _exported(self) -> Any:
        """Returns the array, if that cuts nothing off."""
        if self.requires_grad and is_grad_enabled():
            raise AutogradError(
                "a tensor that needs a gradient does not become an array by itself, as that would "
                "cut it off from the graph; write t.detach().numpy(), t.data, or use no_grad(); "
                "np.stack([t, ...]) makes one tensor of several"
            )
        return self._value.array

    def numpy(self) -> Array:
        """Returns the values as a NumPy array; shared if they are in host memory.

        Raises:
            AutogradError: It needs a gradient, outside `no_grad()`: write `t.detach().numpy()`.
        """
        return to_host(self._exported())

    def cupy(self) -> Array:
        """Returns the values as a CuPy array; shared if they are on a GPU, else on the first one.

        Raises:
            AutogradError: It needs a gradient, outside `no_grad()`: write `t.detach().cupy()`.
            RuntimeError: CuPy is not installed.
        """
        array: Array = self._exported()
        return array if is_cupy(array) else to_device(array, "cuda")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if sparse_product_asks():
            alone = np.empty((), dtype=object)
            alone[()] = self
            return alone
        array = self.numpy()
        if copy:
            return np.array(array, dtype=dtype)
        if copy is False:
            return np.array(array, dtype=dtype, copy=False)
        return np.asarray(array, dtype=dtype)

    @property
    def __array_interface__(self) -> Any:
        if sparse_product_asks():
            raise AttributeError("scipy.sparse leaves the product to Tensor")
        array = self._host_only("__array_interface__")
        if array.dtype.kind == "V":  # bfloat16 and its like: the interface has no name for them
            raise AttributeError(f"__array_interface__ cannot say {array.dtype}")
        self._exported()
        if self.requires_grad:  # who takes it would hold this Tensor, and its graph with it
            raise AttributeError("__array_interface__ is of what needs no gradient")
        return array.__array_interface__

    @property
    def __cuda_array_interface__(self) -> Any:
        if not is_cupy(self._value.array):
            raise AttributeError("__cuda_array_interface__ is of arrays on a GPU")
        return self._exported().__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self._exported().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        array: Any = self._value.array
        return array.__dlpack_device__()

    def _host_only(self, name: str) -> Any:
        array: Any = self._value.array
        if is_cupy(array):
            raise AttributeError(f"{name} is of arrays in host memory, this is on {self.device}")
        return array
