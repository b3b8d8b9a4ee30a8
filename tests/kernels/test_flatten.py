"""Arrays into one buffer and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import kernels

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


def test_out_is_written_and_returned() -> None:
    out = np.empty(3, np.float32)
    transposed = np.array([[1.0], [2.0]], np.float32).T
    assert kernels.flatten([transposed, np.array(3, np.float32)], out=out) is out
    assert out.tolist() == [1.0, 2.0, 3.0]


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
