"""Sparse matrices of `scipy.sparse` and `cupyx.scipy.sparse`, told apart without importing either."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from telegrad.arrays.backend import is_cupy
from telegrad.types import Array

__all__ = ["is_sparse", "sparse_product", "sparse_product_asks"]

_MODULES: Final = ("scipy.sparse", "cupyx.scipy.sparse")


def is_sparse(value: object) -> bool:
    """Tells whether `value` is a sparse array or matrix.

    >>> is_sparse(np.zeros(3))
    False
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return False  # SciPy takes a microsecond to say so
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and module.issparse(value):
            return True
    return False


def sparse_product(dense: Array, *, matrix: Any) -> Array:
    """Returns `matrix @ dense`.

    Args:
        dense: A vector, or an array of two axes.
        matrix: A sparse one of two axes, where `dense` lives.

    Raises:
        ValueError: The axes are others, or one is on a GPU and the other is not.
    """
    if matrix.ndim != 2 or dense.ndim not in (1, 2):
        raise ValueError(
            f"a sparse product is of a matrix and of a vector or a matrix, not of shapes "
            f"{matrix.shape} and {dense.shape}; reshape the dense one"
        )
    on_gpu = type(matrix).__module__.startswith("cupyx")
    if on_gpu != is_cupy(dense):
        raise ValueError(
            "a product of a sparse matrix and an array of which one is on a GPU and the other is "
            "not; move the array with tensor.to(device)"
        )
    product: Array = matrix @ dense
    return product


def sparse_product_asks() -> bool:
    """Tells whether `matrix @ x` of scipy.sparse is what wants `x` as an array; for methods of `x`.

    scipy.sparse knows no protocol by which the other operand could say that it does the product
    itself. But it leaves it to that one, if what it gets as an array is a single object.
    """
    asking = sys._getframe(2)
    module = asking.f_globals.get("__name__", "")
    return asking.f_code.co_name == "_matmul_dispatch" and module.startswith("scipy.sparse.")
