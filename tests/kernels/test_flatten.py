"""Arrays into one buffer and back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import kernels
from tests.gpu.comparison import close_on, host, normal, of

DTYPES = [np.float16, np.float32, np.float64, np.int32]
LISTS: list[list[tuple[int, ...]]] = [
    [(3, 4)],
    [(3, 4), (), (0, 2), (5,)],
    [(64, 64), (64,), (10, 64), (10,)],
    [(1,)] * 100,
]
SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=5)


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


@pytest.mark.parametrize("shapes", LISTS, ids=["one", "odd ones", "layers", "many"])
def test_cupys_numbers_are_numpys(cupy: Any, shapes: Any, subtests: pytest.Subtests) -> None:
    for scale, dtype in itertools.product([1.0, 0.5, 3.0], DTYPES):
        with subtests.test(scale=scale, dtype=dtype.__name__):
            sources = [(8 * normal(i, *shape)).astype(dtype) for i, shape in enumerate(shapes)]
            expected = kernels.flatten(sources, scale=scale)
            buffer = kernels.flatten([cupy.asarray(source) for source in sources], scale=scale)
            close_on(cupy, buffer, expected)
            parts = kernels.unflatten(expected, shapes, scale=1 / scale)
            back = kernels.unflatten(buffer, shapes, scale=1 / scale)
            for actual, wanted in zip(back, parts, strict=True):
                close_on(cupy, actual, wanted)
            buffer[...] = 0
            for actual, wanted in zip(back, parts, strict=True):
                close_on(cupy, actual, wanted)  # shares no memory with the buffer


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
