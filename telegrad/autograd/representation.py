"""How a Tensor is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from telegrad.arrays import to_host

if TYPE_CHECKING:
    from telegrad.autograd.tensor import Tensor

__all__ = ["formatted", "represented"]


def represented(tensor: Tensor) -> str:
    """Returns the values as NumPy prints them, and what of the rest is not the usual.

    Of many items NumPy shows the edges (`np.printoptions`); the shape is then told.
    """
    text = np.array2string(to_host(tensor.data), separator=", ", prefix="tensor(")
    if tensor.dtype not in (np.float64, np.int64, np.bool_):
        text += f", dtype={tensor.dtype}"
    if tensor.size > np.get_printoptions()["threshold"] or (tensor.size == 0 and tensor.ndim > 1):
        text += f", shape={tensor.shape}"  # not all of it is shown
    if tensor.device != "cpu":
        text += f", device={tensor.device!r}"
    if tensor.grad_fn is not None:
        text += f", grad_fn={tensor.grad_fn!r}"
    elif tensor.requires_grad:
        text += ", requires_grad=True"
    return f"tensor({text})"


def formatted(tensor: Tensor, spec: str) -> str:
    """Returns `f"{tensor:{spec}}"`: of one number that of the number.

    Raises:
        TypeError: There is a `spec`, and more than one item.
    """
    if not spec:
        return str(tensor)
    if tensor.size != 1:
        raise TypeError(f"a format ({spec!r}) is of one number, not of shape {tensor.shape}")
    return format(tensor.item(), spec)
