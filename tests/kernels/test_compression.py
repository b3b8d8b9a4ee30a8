"""Codecs of gradients: properties, and CuPy's bits against those of the twins of NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import kernels
from telegrad.arrays import computing_dtype
from telegrad.kernels import compression
from tests.gpu.comparison import host, normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, EDGES, few, laid, small_grid

__all__ = ["small_grid"]

ODD = [0.0, -0.0, 1e-30, -3e38, np.inf, -np.inf, np.nan]
SIZES = st.sampled_from([*EDGES, 255, 256, 257, 3000])
many = settings(derandomize=True, deadline=None)


def numbers(size: int, seed: int, dtype: Any, *, digits: int = 9, odd: int = 0) -> Any:
    """Returns random numbers; with few digits some are equal, and some places have odd ones."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=size).round(digits)
    if size:
        found[rng.integers(0, size, odd)] = rng.choice(ODD, odd)
    with np.errstate(over="ignore"):
        return found.astype(dtype)


def rest_for(values: Any, seed: int) -> Any:
    return numbers(values.size, seed, computing_dtype(values.dtype)) / 10


def totals(values: Any, rest: Any) -> Any:
    return rest + values.astype(rest.dtype)


def mean_of(unpack: Any, rows: list[Any], like: Any) -> Any:
    out = np.empty(like.size, like.dtype)
    unpack(np.stack(rows), out)
    return out


def same(found: Any, expected: Any) -> None:
    """Checks that arrays are of the same bits, but for those of a NaN."""
    found = host(found)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(*(each.astype(np.float64) for each in (found, expected)))


# -- properties ------------------------------------------------------------------------------------


@many
@given(SIZES, st.integers(0, 99), st.sampled_from(DTYPES))
def test_what_8_bits_leave_is_at_most_half_of_a_step(size: int, seed: int, dtype: Any) -> None:
    values = numbers(size, seed, dtype)
    rest = rest_for(values, seed + 1)
    total = totals(values, rest)
    packed = kernels.quantize(values, rest)
    assert packed.nbytes <= size + 4 * -(-size // 256) + 3
    for start in range(0, size, 256):
        block = slice(start, start + 256)
        step = np.abs(total[block]).max() / 127
        assert np.abs(rest[block]).max() <= 0.5001 * step
    sent = mean_of(kernels.mean_quantized, [packed], rest)
    np.testing.assert_allclose(sent + rest, total, rtol=1e-6, atol=1e-6)


@many
@given(SIZES, st.integers(0, 99), st.sampled_from(DTYPES), st.floats(0, 1), st.sampled_from([1, 9]))
def test_the_largest_are_packed_and_the_others_left(
    size: int, seed: int, dtype: Any, share: float, digits: int
) -> None:
    values = numbers(size, seed, dtype, digits=digits)
    rest = np.zeros(size, computing_dtype(dtype))
    total, k = totals(values, rest), int(share * size)
    packed = kernels.pack_largest(values, rest, k)
    assert packed.nbytes == 8 * k
    chosen = np.sort(np.argsort(-np.abs(total.astype(np.float32)), kind="stable")[:k])
    np.testing.assert_array_equal(packed[4 * k :].view(np.uint32), chosen)
    sent = mean_of(kernels.mean_largest, [packed], rest)
    expected = np.zeros(size, np.float32)
    expected[chosen] = total[chosen]
    np.testing.assert_array_equal(sent, expected)
    np.testing.assert_array_equal(rest, total - expected)


@many
@given(SIZES, st.integers(0, 99), st.sampled_from(DTYPES), st.integers(1, 5))
def test_means_are_those_of_all_ranks(size: int, seed: int, dtype: Any, n: int) -> None:
    values = [numbers(size, seed + r, dtype) for r in range(n)]
    for unpack, rows in (
        (kernels.mean_quantized, [kernels.quantize(x, rest_for(x, 7)) for x in values]),
        (
            kernels.mean_largest,
            [kernels.pack_largest(x, rest_for(x, 7), size // 2) for x in values],
        ),
    ):
        wide = np.empty(size)
        parts = [mean_of(unpack, [row], wide) for row in rows]
        found = mean_of(unpack, rows, values[0]).astype(np.float64)
        precision = {"float16": 2e-3, "bfloat16": 2e-2}.get(np.dtype(dtype).name, 1e-6)
        np.testing.assert_allclose(found, np.mean(parts, 0), precision, precision)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_travel_and_leave_nothing(odd: float) -> None:
    values = np.ones(600, np.float32)
    values[[300, 301]] = odd
    rest = np.zeros(600, np.float32)
    sent = mean_of(kernels.mean_quantized, [kernels.quantize(values, rest)], rest)
    assert np.isnan(sent[256:512]).all()
    assert np.isfinite(np.delete(sent, slice(256, 512))).all()
    assert np.isfinite(rest).all()
    sent = mean_of(kernels.mean_largest, [kernels.pack_largest(values, rest, 1)], rest)
    assert not np.isfinite(sent[300])
    assert np.isfinite(rest).all()


@pytest.mark.parametrize(
    ("dtype", "first", "second", "rest"),
    [
        (np.float32, np.inf, -np.inf, 0),
        (np.float32, 3.4e38, 3.4e38, 1e36),
        (np.float64, 1.7e308, 1.7e308, 1e308),
        (np.float16, 65504, 65504, 300),
    ],
)
@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (kernels.quantize, kernels.mean_quantized),
        (partial(kernels.pack_largest, k=1), kernels.mean_largest),
    ],
)
def test_overflow_is_silent_on_every_rank(
    dtype: Any, first: float, second: float, rest: float, pack: Any, unpack: Any
) -> None:
    """A loss scale looks for it: it is no warning, which may be an error of the backward."""
    rests = [np.full(2, rest, computing_dtype(np.dtype(dtype))) for _ in range(2)]
    given_ = [np.array([x, 0], dtype) for x in (first, second)]
    rows = [pack(x, kept) for x, kept in zip(given_, rests, strict=True)]
    assert not np.isfinite(mean_of(unpack, rows, given_[0])[0])
    assert np.isfinite(rests).all()


def test_numbers_below_the_least_scale_are_kept() -> None:
    rest, values = np.zeros(3, np.float32), np.full(3, 1e-30, np.float32)
    sent = mean_of(kernels.mean_quantized, [kernels.quantize(values, rest)], rest)
    np.testing.assert_array_equal(sent, 0)
    np.testing.assert_array_equal(rest, values)


@pytest.mark.parametrize("k", [-1, 4])
def test_more_than_there_are(k: int) -> None:
    with pytest.raises(ValueError, match=f"cannot pack the {k} largest of 3 numbers"):
        kernels.pack_largest(np.ones(3), np.zeros(3), k)


# -- the CUDA source ---------------------------------------------------------------------------------


def check_quantized(cupy: Any, values: Any, rest: Any, layout: str = "plain") -> None:
    rest_there = cupy.asarray(rest)
    expected = kernels.quantize(values, rest)
    found = kernels.quantize(laid(cupy, values, layout), rest_there)
    size, blocks = values.size, -(-values.size // 256)
    same(found[: 4 * blocks].view(np.float32), expected[: 4 * blocks].view(np.float32))
    same(found[4 * blocks : 4 * blocks + size], expected[4 * blocks : 4 * blocks + size])
    # A GPU may compute a product and a difference with one rounding.
    np.testing.assert_allclose(host(rest_there), rest, rtol=0, atol=1e-6)


def check_largest(cupy: Any, values: Any, rest: Any, k: int, layout: str = "plain") -> None:
    rest_there = cupy.asarray(rest)
    expected = kernels.pack_largest(values, rest, k)
    found = kernels.pack_largest(laid(cupy, values, layout), rest_there, k)
    same(found[: 4 * k].view(np.float32), expected[: 4 * k].view(np.float32))
    same(found[4 * k :].view(np.uint32), expected[4 * k :].view(np.uint32))
    same(rest_there, rest)


@few
@given(SIZES, st.sampled_from(DTYPES), st.sampled_from(["plain", "offset"]), st.integers(0, 4))
def test_cupys_bytes_are_numpys(cupy: Any, size: int, dtype: Any, layout: str, odd: int) -> None:
    values = numbers(size, 1, dtype, odd=odd)
    check_quantized(cupy, values, rest_for(values, 2), layout)


@few
@given(
    SIZES,
    st.sampled_from(DTYPES),
    st.sampled_from(["plain", "offset"]),
    st.floats(0, 1),
    st.sampled_from([0, 1, 9]),
    st.integers(0, 4),
)
def test_cupys_largest_are_numpys(
    cupy: Any, size: int, dtype: Any, layout: str, share: float, digits: int, odd: int
) -> None:
    values = numbers(size, 1, dtype, digits=digits, odd=odd)
    rest = np.zeros(size, computing_dtype(dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_PARTS", 3)
        check_largest(cupy, values, rest, int(share * size), layout)


@pytest.mark.usefixtures("small_grid")
def test_more_items_than_a_grid(cupy: Any) -> None:
    values = numbers(10_000, 1, np.float32, digits=2)
    check_quantized(cupy, values, rest_for(values, 2))
    check_largest(cupy, values, np.zeros(10_000, np.float32), 2500)
    rows = np.stack([kernels.quantize(values, rest_for(values, r)) for r in range(3)])
    there = cupy.empty(10_000, dtype=np.float32)
    kernels.mean_quantized(cupy.asarray(rows), there)
    same(there, mean_of(kernels.mean_quantized, [*rows], values))


@few
@given(SIZES, st.sampled_from(DTYPES), st.integers(1, 4), st.integers(0, 2))
def test_cupys_means_are_numpys(cupy: Any, size: int, dtype: Any, n: int, odd: int) -> None:
    values = [numbers(size, r, dtype, odd=odd) for r in range(n)]
    k = size // 3
    for unpack, rows in (
        (kernels.mean_quantized, [kernels.quantize(x, rest_for(x, 7)) for x in values]),
        (kernels.mean_largest, [kernels.pack_largest(x, rest_for(x, 7), k) for x in values]),
    ):
        there = cupy.empty(size, dtype=dtype)
        unpack(cupy.asarray(np.stack(rows)), there)
        same(there, mean_of(unpack, rows, values[0]))


def test_places_that_are_not_there_write_nothing(cupy: Any) -> None:
    """They come from other ranks."""
    row = np.r_[np.ones(2, np.float32).view(np.uint8), np.array([1, 7], np.uint32).view(np.uint8)]
    out = cupy.empty(3, dtype=np.float32)
    kernels.mean_largest(cupy.asarray(row[np.newaxis]), out)
    assert host(out).tolist() == [0, 1, 0]
    with pytest.raises(IndexError):
        kernels.mean_largest(row[np.newaxis], np.empty(3, np.float32))


def test_launches(stand_in_cupy: Any) -> None:
    cupy = stand_in_cupy
    values = cupy.asarray(normal(0, 5000).astype(ml_dtypes.bfloat16))
    rest, out = cupy.zeros(5000, dtype=np.float32), cupy.empty_like(values)
    with launches() as seen:
        rows = kernels.quantize(values, rest).reshape(1, -1)
        kernels.mean_quantized(rows, out)
    assert seen == ["quantize", "mean_quantized"]
    with launches() as seen:
        rows = kernels.pack_largest(values, rest, 50).reshape(1, -1)
    assert seen == ["zeros", *["count_digits"] * 4, "count_largest", "pack_largest"]
    with launches() as seen:
        kernels.mean_largest(rows, out)
    assert seen[:2] == ["zeros", "add_largest"]
    assert len(seen) == 4
