"""Codecs of gradients that leave out a part of them: 8 bits for each, or the largest alone.

    values ──┐                ┌─ packed ─▶ all ranks ─▶ the mean of what has travelled
             ├─ + ─ a codec ──┤
    rest ────┘                └─ rest ─▶ the next step

What is left out of one step is added to the numbers of the next one, and so comes later. That is
the error feedback of S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient
compression schemes" (2019). A number that is not finite makes the mean so, and leaves no rest.
Overflow is silent, as on a GPU. Twins: `cuda/compression.cu`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import check_devices, is_cupy, namespace
from telegrad.kernels.cuda import Kernel, blocks_for
from telegrad.kernels.flatten import flatten
from telegrad.types import Array

_QUANTIZE: Final = Kernel("compression", "quantize")
_MEAN_QUANTIZED: Final = Kernel("compression", "mean_quantized")
_COUNT_DIGITS: Final = Kernel("compression", "count_digits")
_COUNT_LARGEST: Final = Kernel("compression", "count_largest")
_PACK_LARGEST: Final = Kernel("compression", "pack_largest")
_ADD_LARGEST: Final = Kernel("compression", "add_largest")
_BLOCK: Final = 256  # items of a scale, which adds a 64th to their bytes; a warp has eight a thread
_LEAST_SCALE: Final = 2.0**-80  # of a smaller one, GPUs might take parts of a sum for zero
_THREADS: Final = 256
_PARTS: Final = 1024  # of a selection; a GPU runs about so many blocks at once
_WORDS: Final = 4 * 256 + 10


def quantize(values: Array, rest: Array) -> Array:
    """Packs numbers in 8 bits each, with a scale for each block of 256.

    The largest number of a block, by magnitude, is 127 times its scale; the others are rounded to
    the nearest multiple. See T. Dettmers, "8-bit approximations for parallelism in deep learning"
    (2015), and T. Dettmers et al., "8-bit optimizers via block-wise quantization" (2021), whose
    scale is of a block, so that a large number costs only its neighbours precision.

    Args:
        values: Floating-point numbers, of one axis and contiguous.
        rest: What was left out before: of the same shape, in float64 if `values` are, else in
            float32. What is left out now replaces it.

    Returns:
        Bytes: the scales in float32, then the codes, then zeros up to a multiple of four.

    >>> rest = np.zeros(3, np.float32)
    >>> rows = quantize(np.array([127, 2.25, -3], np.float32), rest)[np.newaxis]
    >>> out = np.empty(3, np.float32)
    >>> mean_quantized(rows, out)
    >>> out.tolist(), rest.tolist()
    ([127.0, 2.0, -3.0], [0.0, 0.25, 0.0])
    """
    check_devices("a bucket to quantize", values, rest)
    size, blocks = values.size, -(-values.size // _BLOCK)
    packed: Any = namespace(values).empty(4 * blocks + size + -size % 4, dtype=np.uint8)
    scales, codes = _scales_and_codes(packed, blocks)
    if is_cupy(values):
        with values.device:  # type: ignore[attr-defined]
            args = (values, rest, scales, codes, size, codes.size)
            _QUANTIZE.launch(*args, blocks=blocks_for(blocks, 8), ITEM=values.dtype)
        return packed  # type: ignore[no-any-return]
    table = np.zeros((blocks, _BLOCK), rest.dtype)
    with np.errstate(all="ignore"):
        rest += values
        table.reshape(-1)[:size] = rest
        small = table.astype(np.float32, copy=False)
        scale = np.abs(small).max(1, keepdims=True) / np.float32(127)
        scale[~np.isfinite(scale)] = np.nan
        scale[scale < _LEAST_SCALE] = 0
        rounded = np.rint(small / np.where(scale > 0, scale, 1))
        rounded[~(scale[:, 0] > 0)] = 0
        table -= np.where(np.isnan(scale), table, rounded * scale)
    rest[...] = np.nan_to_num(table.reshape(-1)[:size], nan=0.0)
    scales[...] = scale[:, 0]
    codes[...] = rounded.reshape(-1)[: codes.size]
    return packed  # type: ignore[no-any-return]


def mean_quantized(rows: Array, out: Array) -> None:
    """Writes the mean of numbers that `quantize` has packed; its bits depend on nothing else.

    Args:
        rows: What was packed, of shape (ranks, bytes).
        out: The mean: of the shape and dtype of `values`.
    """
    check_devices("a quantized bucket", rows, out)
    size, blocks, n = out.size, -(-out.size // _BLOCK), len(rows)
    if is_cupy(out):
        with out.device:  # type: ignore[attr-defined]
            args = (rows, out, size, n, rows.shape[1], blocks, 1 / n)
            _MEAN_QUANTIZED.launch(*args, blocks=blocks_for(size, _THREADS), ITEM=out.dtype)
        return
    total = np.zeros(size, np.float32)
    with np.errstate(all="ignore"):
        for row in rows:
            scales, codes = _scales_and_codes(row, blocks)
            total += codes[:size] * np.repeat(scales, _BLOCK)[:size]
        out[...] = total * np.float32(1 / n)


def _scales_and_codes(packed: Any, blocks: int) -> tuple[Any, Any]:
    return packed[: 4 * blocks].view(np.float32), packed[4 * blocks :].view(np.int8)


def pack_largest(values: Array, rest: Array, k: int) -> Array:
    """Packs the `k` largest numbers by magnitude, and their places.

    Of numbers of one magnitude, those at the first places are taken; a NaN is larger than all
    others. On a GPU no array is sorted: four launches find the bits of the smallest number that is
    packed, eight at a time, and two more pack.

    Args:
        values: As for `quantize`.
        rest: As for `quantize`.
        k: A number from 0 to `values.size`.

    Returns:
        Bytes: the numbers in float32 in the order of their places, then the places in uint32.

    Raises:
        ValueError: `k` is no such number, or there are 2**32 values or more.

    >>> rest = np.zeros(4, np.float32)
    >>> rows = pack_largest(np.array([1.0, -3.0, 2.0, 0.5], np.float32), rest, 2)[np.newaxis]
    >>> out = np.empty(4, np.float32)
    >>> mean_largest(rows, out)
    >>> out.tolist(), rest.tolist()
    ([0.0, -3.0, 2.0, 0.0], [1.0, 0.0, 0.0, 0.5])
    """
    check_devices("a bucket to compress", values, rest)
    size = values.size
    if not 0 <= k <= size or size >= 1 << 32:
        raise ValueError(f"cannot pack the {k} largest of {size} numbers, of up to 2**32 - 1")
    packed: Any = namespace(values).empty(8 * k, dtype=np.uint8)
    numbers, places = packed[: 4 * k].view(np.float32), packed[4 * k :].view(np.uint32)
    if k and is_cupy(values):
        with values.device:  # type: ignore[attr-defined]
            _launch_selection(values, rest, k, numbers, places)
        return packed  # type: ignore[no-any-return]
    with np.errstate(all="ignore"):
        rest += values
        if k:
            found = rest.astype(np.float32, copy=False)
            bits = np.abs(found).view(np.uint32)
            least = np.partition(bits, size - k)[size - k]
            larger = np.flatnonzero(bits > least)
            places[...] = np.sort(np.r_[larger, np.flatnonzero(bits == least)[: k - larger.size]])
            numbers[...] = found[places]
            rest[places] -= numbers
            rest[bits >= 0x7F800000] = 0
    return packed  # type: ignore[no-any-return]


def _launch_selection(values: Any, rest: Any, k: int, numbers: Any, places: Any) -> None:
    xp, size = namespace(values), values.size
    part = -(-size // (_PARTS * _THREADS)) * _THREADS
    blocks = -(-size // part)
    words = xp.zeros(_WORDS, dtype=np.uint32)
    counts = xp.empty(2 * blocks, dtype=np.uint32)
    how: Any = {"blocks": blocks, "ITEM": values.dtype}
    for known in range(4):
        _COUNT_DIGITS.launch(values, rest, words, size, k, known, **how)
    _COUNT_LARGEST.launch(rest, words, counts, size, k, part, **how)
    _PACK_LARGEST.launch(rest, words, counts, numbers, places, size, part, **how)


def mean_largest(rows: Array, out: Array) -> None:
    """Writes the mean of numbers that `pack_largest` has packed; others count as 0.

    Args:
        rows: What was packed, of shape (ranks, bytes).
        out: The mean: of the shape and dtype of `values`.
    """
    check_devices("a compressed bucket", rows, out)
    total: Any = namespace(out).zeros(out.size, dtype=np.float32)
    k = rows.shape[1] // 8
    with np.errstate(all="ignore"):
        for row in rows:
            numbers, places = row[: 4 * k].view(np.float32), row[4 * k :].view(np.uint32)
            if is_cupy(out):
                with out.device:  # type: ignore[attr-defined]
                    how: Any = {"blocks": blocks_for(k, _THREADS), "ITEM": out.dtype}
                    _ADD_LARGEST.launch(numbers, places, total, out.size, k, **how)
            else:
                total[places] += numbers  # of one rank, no place is there twice
        total *= np.float32(1 / len(rows))
        flatten([total], dtype=out.dtype, out=out)
