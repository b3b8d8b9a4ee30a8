"""Tensors as arrays of other libraries: NumPy's protocols, DLPack, the CUDA array interface.

All of them share the memory. A recorded graph does not notice writes by other libraries.
"""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from telegrad.arrays import (
    device_of,
    is_cupy,
    raise_reported,
    sparse_product_asks,
    to_device,
    to_host,
)
from telegrad.autograd.graph.grad_mode import is_grad_enabled
from telegrad.errors import AutogradError
from telegrad.types import Array

if TYPE_CHECKING:
    from telegrad.autograd.graph.node import Node, Value
    from telegrad.types import Shape

T = TypeVar("T")


# -- `ArrayHolder`: the properties of the array --------------------------------------------------


class ArrayHolder:
    """An array with its version, and the properties of the array."""

    __slots__ = ("_value",)

    _value: Value

    @property
    def requires_grad(self) -> bool:
        """True if operations on this are recorded."""
        raise NotImplementedError

    @property
    def shape(self) -> Shape:
        """The lengths of the array's axes."""
        return self._value.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its items."""
        return self._value.array.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._value.array.ndim

    @property
    def size(self) -> int:
        """The number of items."""
        return self._value.array.size

    @property
    def device(self) -> str:
        """The device of the array: `cpu`, or `cuda:0`, `cuda:1`, ..."""
        return device_of(self._value.array)

    @property
    def itemsize(self) -> int:
        """The size of one item in bytes."""
        return self._value.array.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of all items in bytes."""
        return self.size * self.itemsize

    def item(self, *place: Any) -> Any:
        """Returns one item as a Python number: the only one, or the one at index `place`.

        Raises:
            ValueError: There is no `place`, and the number of items is not one.
            IndexError: `place` is outside the array.
            ValueError: A GPU has found an error in its data in earlier work: a label that is no
                class.
        """
        array: Any = self._value.array
        if place:
            index = place[0] if len(place) == 1 else place
            array = array[index] if isinstance(index, tuple) else array.reshape(-1)[index]
        return _waited(array, array.item())

    def tolist(self) -> Any:
        """Returns the items as nested lists of Python numbers; a number if there are no axes."""
        return _waited(self._value.array, self._value.array.tolist())

    def __len__(self) -> int:
        return len(self._value.array)

    def __bool__(self) -> bool:
        return _waited(self._value.array, bool(self._value.array))

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())


def _waited(array: Array, value: T) -> T:
    """Returns a value of `array` that the host has waited for; raises what GPUs have reported."""
    if type(array) is not np.ndarray:
        raise_reported()
    return value


# -- export to other libraries -------------------------------------------------------------------


class Interchange(ArrayHolder):
    """The exports to other libraries.

    Outside `no_grad()` they refuse a Tensor that needs a gradient.
    """

    __slots__ = ()

    def _exported(self) -> Any:
        """Returns the array, unless that would cut it off from a graph."""
        if self.requires_grad and is_grad_enabled():
            raise AutogradError(
                "a tensor that needs a gradient does not become an array by itself, as that would "
                "cut it off from the graph; write t.detach().numpy(), t.data, or use no_grad(); "
                "np.stack([t, ...]) makes one tensor of several, and beside a pandas object, write "
                "series.to_numpy()"
            )
        return self._value.array

    def __complex__(self) -> complex:
        self._warn_of_number("complex(t)")
        return complex(self.item())

    def __float__(self) -> float:
        self._warn_of_number("float(t)")
        return float(self.item())

    def _warn_of_number(self, call: str) -> None:
        if self.requires_grad and is_grad_enabled():
            warnings.warn(
                f"a tensor that needs a gradient became a number by {call}, which math.sqrt(t), "
                "np.fromiter(t) and the like call too: what is computed from it gets no gradient; "
                "write np.sqrt(t) to keep the graph, or t.item() for the number alone",
                UserWarning,
                stacklevel=3,
            )

    def numpy(self) -> Array:
        """Returns the values as a NumPy array, which shares the memory if that is host memory.

        Raises:
            AutogradError: This needs a gradient, outside `no_grad()`: write `t.detach().numpy()`.
        """
        exported = self._exported()
        return _waited(exported, to_host(exported))

    def cupy(self) -> Array:
        """Returns the values as a CuPy array: shared if on a GPU, else a copy on the first.

        Raises:
            AutogradError: This needs a gradient, outside `no_grad()`: write `t.detach().cupy()`.
            RuntimeError: CuPy is not installed.
        """
        array: Array = self._exported()
        return array if is_cupy(array) else to_device(array, "cuda")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if sparse_product_asks():
            alone = np.empty((), dtype=object)
            alone[()] = self
            return alone
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    @property
    def __array_interface__(self) -> Any:
        if sparse_product_asks():
            raise AttributeError("scipy.sparse leaves the product to Tensor")
        array: Any = self._value.array
        if is_cupy(array):
            raise AttributeError(f"__array_interface__ is of host memory, this is on {self.device}")
        if array.dtype.kind == "V":  # bfloat16 and the like: the interface has no name for them
            raise AttributeError(f"__array_interface__ cannot say {array.dtype}")
        self._exported()
        if self.requires_grad:  # the importer would keep this Tensor and its graph alive
            raise AttributeError("__array_interface__ is of what needs no gradient")
        return array.__array_interface__

    @property
    def __cuda_array_interface__(self) -> Any:
        if not is_cupy(self._value.array):
            raise AttributeError("__cuda_array_interface__ is of arrays on a GPU")
        if self.requires_grad and is_grad_enabled():  # CuPy then leaves its ufuncs to Tensor
            raise AttributeError("__cuda_array_interface__ is of what needs no gradient")
        array: Any = self._value.array
        return array.__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self._exported().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        array: Any = self._value.array
        return array.__dlpack_device__()


# -- printing ------------------------------------------------------------------------------------


def represented(tensor: Interchange, grad_fn: Node | None) -> str:
    """Returns the values as NumPy prints them, and the dtype, device and graph if not the usual.

    NumPy abbreviates long arrays (`np.printoptions`); the text then contains the shape.
    """
    text = np.array2string(to_host(tensor._value.array), separator=", ", prefix="tensor(")
    if tensor.dtype not in (np.float64, np.int64, np.bool_):
        text += f", dtype={tensor.dtype}"
    if tensor.size > np.get_printoptions()["threshold"] or (tensor.size == 0 and tensor.ndim > 1):
        text += f", shape={tensor.shape}"  # not all of it is shown
    if tensor.device != "cpu":
        text += f", device={tensor.device!r}"
    if grad_fn is not None:
        text += f", grad_fn={grad_fn!r}"
    elif tensor.requires_grad:
        text += ", requires_grad=True"
    return f"tensor({text})"


def formatted(tensor: ArrayHolder, spec: str) -> str:
    """Returns `f"{tensor:{spec}}"`; a `spec` formats the one number that the Tensor holds.

    Raises:
        TypeError: There is a `spec`, and the number of items is not one.
    """
    if not spec:
        return str(tensor)
    if tensor.size != 1:
        raise TypeError(f"a format ({spec!r}) is of one number, not of shape {tensor.shape}")
    return format(tensor.item(), spec)
