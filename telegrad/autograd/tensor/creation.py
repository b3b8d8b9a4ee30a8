"""The functions that create Tensors from data."""

from __future__ import annotations

from telegrad.arrays import array_from_dlpack, as_array, namespace, to_device
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.types import DTypeLike


def tensor(
    data: object,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Returns a Tensor with a copy of `data`.

    Args:
        data: An array, a Tensor, a number, or nested sequences of numbers.
        dtype: The dtype of the Tensor; None for NumPy's choice.
        device: The device: `cpu`, `cuda` or `cuda:<number>`; None for the device of `data`.
        requires_grad: True for a leaf that needs a gradient.

    Raises:
        AutogradError: `requires_grad` with a dtype that is neither floating-point nor complex.
        TypeError: `data` contains an object that is no number.

    >>> tensor([1, 2], dtype="float32", requires_grad=True)
    tensor([1., 2.], dtype=float32, requires_grad=True)
    """
    source = data.data if isinstance(data, Tensor) else as_array(data)
    array = namespace(source).array(source, dtype=dtype, copy=True)
    if device is not None:
        array = to_device(array, device)
    return Tensor(array, requires_grad=requires_grad)


def as_tensor(data: object) -> Tensor:
    """Returns `data` as a Tensor that shares its memory; a Tensor is returned as it is.

    A recorded graph does not notice writes into the array that bypass the Tensor.

    >>> import numpy as np
    >>> shared = np.zeros(2)
    >>> as_tensor(shared).data is shared
    True
    """
    return data if isinstance(data, Tensor) else Tensor(data)


def from_dlpack(source: object) -> Tensor:
    """Returns a Tensor that shares the memory of another library's array or tensor.

    Neither library notices writes by the other one, and neither does a recorded graph. The first
    versions of NumPy 2.2 make the imported array read-only.

    Args:
        source: An object with `__dlpack__` and `__dlpack_device__`, for example a NumPy or CuPy
            array or a torch tensor.

    Raises:
        TypeError: `source` lacks one of these methods.
        BufferError: The dtype, or the kind of device, is not supported.
        RuntimeError: The array is on a GPU and CuPy is not installed.

    >>> import numpy as np
    >>> shared = np.zeros(2)
    >>> t = from_dlpack(shared)
    >>> shared += 1.0
    >>> t
    tensor([1., 1.])
    """
    return Tensor(array_from_dlpack(source))
