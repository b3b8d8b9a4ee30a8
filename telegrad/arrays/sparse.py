"""Sparse matrices of `scipy.sparse` and `cupyx.scipy.sparse`, recognised without an import."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from telegrad.arrays.backend import is_cupy
from telegrad.types import Array

_MODULES: Final = ("scipy.sparse", "cupyx.scipy.sparse")


def is_sparse(value: object) -> bool:
    """Returns True if `value` is a sparse array or matrix.

    >>> is_sparse(np.zeros(3))
    False
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return False  # quick: SciPy takes a microsecond for the same answer
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and module.issparse(value):
            return True
    return False


def sparse_product(dense: Array, *, matrix: Any) -> Array:
    """Returns `matrix @ dense`.

    Args:
        dense: A vector, or an array of two axes.
        matrix: A sparse matrix of two axes, on the device of `dense`.

    Raises:
        ValueError: The shapes do not fit, or one operand is on a GPU and the other is not.
    """
    if matrix.ndim != 2 or dense.ndim not in (1, 2):
        raise ValueError(
            f"a sparse product takes a matrix and a vector or a matrix, not the shapes "
            f"{matrix.shape} and {dense.shape}; reshape the dense operand"
        )
    on_gpu = type(matrix).__module__.startswith("cupyx")
    if on_gpu != is_cupy(dense):
        raise ValueError(
            "one operand of a sparse product is on a GPU and the other is not; "
            "move the array with tensor.to(device)"
        )
    product: Array = matrix @ dense
    return product


def sparse_product_asks() -> bool:
    """Returns True if `matrix @ x` of scipy.sparse is asking `x` for an array; for methods of `x`.

    scipy.sparse knows no protocol with which the right operand could claim the product. But it
    leaves the product to that operand if its conversion to an array gives a single object. The test
    looks two frames up the stack for scipy.sparse's product.
    """
    asking = sys._getframe(2)
    module = asking.f_globals.get("__name__", "")
    return asking.f_code.co_name == "_matmul_dispatch" and module.startswith("scipy.sparse.")
