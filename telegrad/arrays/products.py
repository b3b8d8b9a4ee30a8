"""Products of many matrices at once by cuBLAS, without copies of arrays that are merely turned.

CuPy's `matmul` copies an operand that is not contiguous, and computes float16 in float32, with
copies of both operands and of the result. cuBLAS takes turned matrices and short floats as they
are.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final, final

import numpy as np

from telegrad.arrays.backend import namespace
from telegrad.types import Array

# By dtype: cuBLAS's numbers of the type (CUDA_R_...), and of that in which it adds
# (CUBLAS_COMPUTE_...).
_TYPES: Final = {
    "float16": (2, 68), "bfloat16": (14, 68), "float32": (0, 68), "float64": (1, 70),
}  # fmt: skip
MOST: Final = 2**31 - 1
"""cuBLAS counts rows, columns and matrices in 32 bits."""
_DEFAULT: Final = -1  # CUBLAS_GEMM_DEFAULT


def batched_product(a: Array, b: Array, out: Array | None = None, *, factor: float = 1.0) -> Array:
    """Returns `factor * a @ b` of CuPy arrays of the same leading axes.

    Args:
        a: Matrices, shape (..., m, k).
        b: Matrices, shape (..., k, n).
        out: An array of the result's shape that receives it; None for a new one.
        factor: The factor of the product; short floats are multiplied before they are rounded.

    Raises:
        ValueError: `a` or `b` has an axis of 2**31 or more items, which cuBLAS does not take.
    """
    xp: Any = namespace(a)
    shape = (*a.shape[:-1], b.shape[-1])
    if a.dtype.name not in _TYPES or a.dtype != b.dtype or not math.prod((*shape, a.shape[-1])):
        made = (a if factor == 1 else a * factor) @ b
        return made if out is None else _copied(made, out)
    direct = out is not None and out.dtype == a.dtype and out.flags.c_contiguous
    result: Any = out if direct else xp.empty(shape, a.dtype)
    product = Product(a, b, factor)
    product.launch(product.left.data.ptr, result.data.ptr)
    final: Array = result
    return final if out is None or direct else _copied(final, out)


@final
class Product:
    """A product by cuBLAS that is launched many times, by addresses: in loops of recurrent layers.

    Args:
        a: Matrices of CuPy, shape (..., m, k), not empty; of a float dtype that cuBLAS takes.
        b: Matrices of the same dtype, shape (..., k, n).
        factor: The factor of the product.

    Raises:
        ValueError: An array has an axis of 2**31 or more items, or more matrices than that.

    Attributes:
        left: The matrices `a`; a copy if they do not lie in memory as cuBLAS needs them.
    """

    def __init__(self, a: Any, b: Any, factor: float = 1.0) -> None:
        cuda = namespace(a).cuda
        *lead, m, k = a.shape
        n = b.shape[-1]
        for name, x in (("a", a), ("b", b)):
            if max(math.prod(lead), *x.shape[-2:]) > MOST:
                raise ValueError(
                    f"{name} of a product has shape {x.shape}; cuBLAS takes matrices of at most "
                    f"{MOST} rows and columns, and at most as many matrices: cut it in parts"
                )
        code, adding = _TYPES[a.dtype.name]
        wide = np.float64 if a.dtype == np.float64 else np.float32
        self.left, turned_a, row_a, step_a = _layout(a)
        right, turned_b, row_b, step_b = _layout(b)
        numbers = np.array([factor, 0], wide)
        self._kept = right, numbers  # alive as long as their addresses
        self._function = cuda.cublas.gemmStridedBatchedEx
        times = numbers.ctypes.data
        # cuBLAS reads columns first, so a matrix in C order is its transpose to it. It computes
        # b.T @ a.T.
        turns, sizes = (turned_b, turned_a), (n, m, k)
        of_b = right.data.ptr, code, row_b, step_b
        self._before = (cuda.get_cublas_handle(), *turns, *sizes, times, *of_b)
        self._between = code, row_a, step_a, times + numbers.itemsize
        self._after = code, n, m * n, math.prod(lead), adding, _DEFAULT

    def launch(self, a: int, out: int) -> None:
        """Multiplies matrices that lie as `left` does; returns at once.

        Args:
            a: The address of the matrices.
            out: The address of the result, which is in C order.
        """
        self._function(*self._before, a, *self._between, out, *self._after)


def _copied(result: Array, out: Array) -> Array:
    out[...] = result.astype(out.dtype, copy=False)
    return out


def _layout(x: Any) -> tuple[Any, int, int, int]:
    """Returns the array, 1 if its matrices are turned, and the items between rows and matrices.

    It is a copy if the matrices do not lie in equal steps.
    """
    steps = [step // x.itemsize for step in x.strides]
    *lead, rows, columns = x.shape
    *outer, row, column = steps
    joined = [(n, step) for n, step in zip(lead, outer, strict=True) if n > 1]
    even = all(step == inner * n for (_, step), (n, inner) in itertools.pairwise(joined))
    of_matrix = joined[-1][1] if joined else 0
    plain = (column == 1 or columns == 1) and (row >= columns or rows == 1)
    turned = (row == 1 or rows == 1) and (column >= rows or columns == 1)
    if even and of_matrix >= 0 and plain:
        return x, 0, max(row if rows > 1 else columns, columns), of_matrix
    if even and of_matrix >= 0 and turned:
        return x, 1, max(column if columns > 1 else rows, rows), of_matrix
    return _layout(x.copy(order="C"))
