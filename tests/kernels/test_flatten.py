"""Arrays into one buffer and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import kernels
from tests.gpu.comparison import host, normal, of
from tests.gpu.launches import calls_of, launches
from tests.kernels.strided import EDGES, ROUNDING, agree, compiles, few, laid, layouts, small_grid

__all__ = ["small_grid"]

ALL = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64]
SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=5)


def precision(dtype: Any) -> float:
    return -ROUNDING.get(np.dtype(dtype).name, 0.0)


@settings(derandomize=True, deadline=None)
@given(SHAPES, st.sampled_from([1.0, 0.5, 3.0]), st.sampled_from([np.float32, np.float64]))
def test_there_and_back(shapes: list[Any], scale: float, dtype: Any) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=shape).astype(dtype) for shape in shapes]
    buffer = kernels.flatten(arrays, scale=scale)
    assert buffer.dtype == dtype
    assert buffer.shape == (sum(a.size for a in arrays),)
    back = kernels.unflatten(buffer, shapes, scale=1 / scale)
    for before, after in zip(arrays, back, strict=True):
        assert after.shape == before.shape
        assert after.dtype == dtype
        assert not np.shares_memory(after, buffer)
        np.testing.assert_allclose(after, before, rtol=1e-6)


@compiles
@few
@given(
    st.lists(st.sampled_from(EDGES), min_size=1, max_size=5),
    st.sampled_from([(x, y) for x in ALL for y in ALL]),
    st.sampled_from([1.0, 0.5, 3.0]),
    layouts,
)
@pytest.mark.long
def test_cupys_casts_are_numpys(
    cupy: Any, sizes: list[int], dtypes: Any, scale: float, layout: str
) -> None:
    before, after = dtypes
    if np.dtype(after).kind in "iu" and np.dtype(before).itemsize == 2:
        scale = 1.0  # a product that is rounded to 16 bits before the cast may be another integer
    arrays = [(100 * normal(i, n)).astype(before) for i, n in enumerate(sizes)]
    there = [laid(cupy, x, layout) for x in arrays]
    with np.errstate(all="ignore"):
        expected = kernels.flatten(arrays, scale=scale, dtype=after)
        found = kernels.flatten(there, scale=scale, dtype=after)
    agree(cupy, found, expected, times=1, dtype=min(dtypes, key=precision))
    back = kernels.unflatten(found, [x.shape for x in arrays], scale=2.0, dtype=before)
    wanted = kernels.unflatten(expected, [x.shape for x in arrays], scale=2.0, dtype=before)
    for each, one in zip(back, wanted, strict=True):
        agree(cupy, each, one, dtype=min(dtypes, key=precision))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.bool_, np.complex64, np.complex128])
def test_any_items_are_copied(cupy: Any, dtype: Any) -> None:
    arrays = [(3 * normal(i, n)).astype(dtype) for i, n in enumerate((3, 1, 33))]
    there = [cupy.asarray(x) for x in arrays]
    for scale in (1.0, 2.0):
        expected = kernels.flatten(arrays, scale=scale)
        np.testing.assert_array_equal(host(kernels.flatten(there, scale=scale)), expected)


def test_complex_numbers_at_a_multiple_of_eight_bytes(cupy: Any) -> None:
    """A GPU refuses to read 16 bytes at once elsewhere than at a multiple of 16; a CPU does not."""
    values = [normal(i, 2 * n) for i, n in enumerate((1, 2, 5))]
    there = []
    for each in values:
        made = cupy.zeros(len(each) + 1)[1:]
        made[...] = cupy.asarray(each)
        there.append(made.view(np.complex128))
    found = kernels.flatten(there)
    np.testing.assert_array_equal(host(found), np.concatenate(values).view(np.complex128))


@pytest.mark.usefixtures("small_grid")
def test_more_chunks_than_blocks(cupy: Any) -> None:
    arrays = [normal(i, 7001 * i).astype(np.float32) for i in range(1, 7)]
    found = kernels.flatten([cupy.asarray(x) for x in arrays], scale=0.5, dtype=np.float64)
    np.testing.assert_array_equal(host(found), kernels.flatten(arrays, scale=0.5, dtype=np.float64))


def test_one_launch_for_all_arrays(stand_in_cupy: Any) -> None:
    cupy = stand_in_cupy
    arrays = [cupy.ones((i, 3), np.float32) for i in range(40)]
    for options in ({}, {"scale": 0.5}, {"dtype": np.float16}):
        with launches() as there:
            buffer = kernels.flatten(arrays, **options)
        with launches() as back:
            kernels.unflatten(buffer, [x.shape for x in arrays], **options)
        assert there == ["flatten"]
        assert len(back) == 1  # CuPy's own function, without a table of addresses


def test_more_arrays_make_no_more_calls(stand_in_cupy: Any) -> None:
    def calls(count: int) -> tuple[int, int]:
        arrays = [stand_in_cupy.ones((2, 3), np.float32)] * count
        buffer, shapes = kernels.flatten(arrays), [x.shape for x in arrays]
        return calls_of(lambda: kernels.flatten(arrays, scale=0.5)), calls_of(
            lambda: kernels.unflatten(buffer, shapes, scale=0.5)
        )

    assert calls(2) == calls(40)
    assert max(calls(1)) < 20


def test_out_is_written_and_returned(xp: Any) -> None:
    out = xp.empty(3, dtype=np.float32)
    transposed = xp.asarray(np.array([[1.0], [2.0]], np.float32)).T
    assert kernels.flatten([transposed, xp.asarray(np.array(3, np.float32))], out=out) is out
    assert host(out).tolist() == [1.0, 2.0, 3.0]
    assert of(xp, out)


def test_one_buffer_is_on_one_device(cupy: Any) -> None:
    column = cupy.asarray(np.array([[1.0], [2.0]], np.float32))
    words = "one buffer of arrays on different devices"
    with pytest.raises(ValueError, match=words):
        kernels.flatten([column], out=np.empty(2, np.float32))
    with pytest.raises(ValueError, match=words):
        kernels.flatten([column, np.zeros(1, np.float32)])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kernels.flatten([]), "no arrays"),
        (lambda: kernels.flatten([np.zeros(1), np.zeros(1, int)]), "float64', 'int64"),
        (lambda: kernels.flatten([np.zeros(2)], out=np.zeros(3)), r"\(2,\) and float64 needed"),
        (lambda: kernels.unflatten(np.zeros(3), [(2, 2)]), "does not have 4 items"),
    ],
)
def test_what_does_not_fit(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
