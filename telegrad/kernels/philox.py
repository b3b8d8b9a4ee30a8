"""Dropout whose mask is a function of a key, so that no mask is stored.

Item i is kept or dropped by word i % 4 of the random numbers that Philox 4x32-10 makes of the
counter i // 4 and the key: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
(2011). The gradient computes the mask again. NumPy and CuPy arrays have the same mask;
`cuda/dropout.cu` computes that of CuPy arrays.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import computing_dtype, is_cupy, is_inexact, namespace
from telegrad.kernels.cuda import Kernel, blocks_for, contiguous
from telegrad.types import Array

_PIECE: Final = 1 << 13
"""Counters in one piece on the CPU: the arrays of a piece take some 300 kB."""
_FACTORS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_MASK: Final = (1 << 32) - 1
_LAUNCHED: Final = Kernel("dropout", "dropout")


def dropout(x: Array, *, key: int, p: float) -> Array:
    """Returns `x` with each item set to zero with probability `p`, or else divided by `1 - p`.

    Args:
        x: Floating-point numbers; the mask depends on their number and order alone.
        key: An integer from 0 to 2**63 - 1.
        p: The probability, from 0 to 1, rounded to a multiple of 2**-32.

    Raises:
        TypeError: The numbers are integers.

    >>> dropout(np.ones(8), key=1, p=0.5)
    array([2., 2., 2., 2., 2., 2., 0., 2.])
    """
    if not is_inexact(x.dtype):
        raise TypeError(f"dropout takes floating-point numbers, not {x.dtype}")
    threshold, scale = mask_of(p)
    xp = namespace(x)
    result: Array = xp.empty(x.shape, x.dtype)
    if is_cupy(x):
        blocks = blocks_for(x.size, 2048)
        given = (contiguous(x), result, x.size, key, threshold, scale)
        _LAUNCHED.launch(*given, blocks=blocks, ITEM=x.dtype)
    else:
        flat, made = x.reshape(-1), result.reshape(-1)
        for start in range(0, x.size, 4 * _PIECE):
            piece = slice(start, start + 4 * _PIECE)
            kept = _words(key, start // 4, -(-len(flat[piece]) // 4)).ravel()[: len(flat[piece])]
            wide = flat[piece].astype(computing_dtype(x.dtype), copy=False)
            made[piece] = np.where(kept >= threshold, wide * scale, 0)
    return result


def mask_of(p: float) -> tuple[int, float]:
    """Returns the least word of an item that is kept, and the factor of the items that are kept."""
    return round(p * 2**32), 1 / (1 - p) if p < 1 else 0.0


def _words(key: int, start: int, count: int) -> Any:
    """Returns the random words of `count` counters, shape (count, 4)."""
    counters = np.arange(start, start + count, dtype=np.uint64)
    a, b = counters & _MASK, counters >> 32
    c, d, first, second = (np.zeros_like(a) for _ in range(4))
    keys = [key & _MASK, key >> 32]
    for _ in range(10):
        np.multiply(a, _FACTORS[0], out=first)
        np.multiply(c, _FACTORS[1], out=second)
        np.right_shift(second, 32, out=a)
        a ^= b
        a ^= keys[0]
        np.right_shift(first, 32, out=c)
        c ^= d
        c ^= keys[1]
        np.bitwise_and(second, _MASK, out=b)
        np.bitwise_and(first, _MASK, out=d)
        keys = [(each + step) & _MASK for each, step in zip(keys, _STEPS, strict=True)]
    return np.stack((a, b, c, d), axis=1)
