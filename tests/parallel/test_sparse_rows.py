"""The mean of row-sparse gradients equals the mean of the arrays that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from telegrad.autograd import RowSparse, is_row_sparse
from telegrad.parallel.sparse_rows import mean_of_rows, pack_rows

SHAPE = (5, 2)
FLOAT = np.dtype(np.float64)


@st.composite
def gradients(draw: st.DrawFn) -> Any:
    """None, an array, or rows in any order, some of them repeated."""
    kind = draw(st.sampled_from(["none", "array", "rows", "rows", "rows"]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    if kind == "none":
        return None
    if kind == "array":
        return rng.normal(size=SHAPE)
    rows = np.array(draw(st.lists(st.integers(0, 4), max_size=8)), np.int64)
    return RowSparse(rows, rng.normal(size=(len(rows), 2)), SHAPE)


def dense(gradient: Any) -> Any:
    if gradient is None:
        return np.zeros(SHAPE)
    return gradient.to_dense() if is_row_sparse(gradient) else gradient


@given(st.lists(gradients(), min_size=1, max_size=4))
def test_the_mean_of_rows_is_the_mean_of_the_arrays(found: list[Any]) -> None:
    packed = [pack_rows(each, SHAPE, FLOAT, np) for each in found]
    for rows, values in packed:
        assert values.shape == (len(rows) - 1, 2)
        assert len(set(rows[1:].tolist())) == len(rows) - 1  # each row travels once
    mean = mean_of_rows([r for r, _ in packed], [v for _, v in packed], SHAPE)
    if all(each is None for each in found):
        assert mean is None
        return
    assert is_row_sparse(mean) != any(isinstance(each, np.ndarray) for each in found)
    np.testing.assert_allclose(
        dense(mean), sum(dense(each) for each in found) / len(found), atol=1e-12
    )


def test_a_mean_keeps_the_dtype_of_the_values() -> None:
    one = RowSparse(np.array([1]), np.ones((1, 2), np.float16), SHAPE)
    packed = [pack_rows(one, SHAPE, np.dtype(np.float16), np)] * 3
    mean = mean_of_rows([r for r, _ in packed], [v for _, v in packed], SHAPE)
    assert mean is not None
    assert mean.dtype == np.float16
