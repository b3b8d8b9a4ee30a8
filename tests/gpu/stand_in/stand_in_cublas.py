"""cuBLAS of the stand-in for CuPy: the one function that telegrad calls, on host memory."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from tests.gpu.stand_in.stand_in_kernels import note

__all__ = ["gemmStridedBatchedEx", "get_cublas_handle"]

DTYPES: dict[int, Any] = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
COMPUTE: dict[int, Any] = {68: np.float32, 70: np.float64}
HANDLE = 7


def get_cublas_handle() -> int:
    return HANDLE


def gemmStridedBatchedEx(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
    a: int, a_type: int, lda: int, stride_a: int, b: int, b_type: int, ldb: int, stride_b: int,
    beta: int, c: int, c_type: int, ldc: int, stride_c: int, count: int, compute: int, algo: int,
) -> None:  # fmt: skip
    """C = alpha op(A) op(B) + beta C for each matrix; all of them column by column."""
    note("gemm")
    assert handle == HANDLE
    assert algo == -1
    assert min(m, n, k, count) > 0
    assert lda >= (k if transa else m)
    assert ldb >= (n if transb else k)
    assert ldc >= m
    wide = COMPUTE[compute]
    one, zero = (np.dtype(wide).type(_at(each, wide, (1,), (0,))[0]) for each in (alpha, beta))
    assert zero == 0
    first = _at(a, DTYPES[a_type], (count, k, m), (stride_a, lda, 1))
    if transa:
        first = _at(a, DTYPES[a_type], (count, m, k), (stride_a, lda, 1)).swapaxes(1, 2)
    second = _at(b, DTYPES[b_type], (count, n, k), (stride_b, ldb, 1))
    if transb:
        second = _at(b, DTYPES[b_type], (count, k, n), (stride_b, ldb, 1)).swapaxes(1, 2)
    made = one * (second.astype(wide) @ first.astype(wide))
    _at(c, DTYPES[c_type], (count, n, m), (stride_c, ldc, 1))[...] = made.astype(DTYPES[c_type])


def _at(place: int, dtype: Any, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    exact = np.dtype(dtype)
    size = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    octets = (ctypes.c_char * (size * exact.itemsize)).from_address(place)
    flat = np.frombuffer(octets, exact)
    strides = [step * exact.itemsize for step in steps]
    return np.lib.stride_tricks.as_strided(flat, shape, strides)
