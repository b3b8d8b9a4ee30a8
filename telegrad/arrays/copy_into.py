"""Values of the host into an array that is there already, wherever that lives."""

from __future__ import annotations

from typing import Any

from telegrad.arrays.backend import is_cupy, namespace
from telegrad.types import Array

__all__ = ["copy_into"]


def copy_into(target: Array, values: Array) -> None:
    """Writes the values of a NumPy array into `target`, of the same shape and dtype.

    They are there when this returns: any thread and any CUDA stream may read them.

    >>> import numpy as np
    >>> target = np.zeros(2)
    >>> copy_into(target, np.ones(2))
    >>> target
    array([1., 1.])
    """
    if not is_cupy(target):
        target[...] = values
        return
    cupy = namespace(target)
    there: Any = target
    with there.device:
        there[...] = cupy.asarray(values)
        cupy.cuda.get_current_stream().synchronize()
