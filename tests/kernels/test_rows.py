"""Sums of rows, and steps of rows, on CuPy arrays against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn, tensor
from telegrad.autograd import RowSparse
from telegrad.kernels import rows as of_rows
from tests.gpu.comparison import host, normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, agree, few, laid, layouts

SIZES = st.tuples(
    st.sampled_from([0, 1, 31, 255, 256, 257, 1025]),
    st.sampled_from([1, 2, 33, 700]),
    st.sampled_from([(), (1,), (4,), (5,), (0,), (3, 8), (1030,)]),
)


@few
@given(SIZES, st.sampled_from(DTYPES), layouts, st.sampled_from([None, 0, 1]), st.integers(1, 700))
def test_cupys_sums_are_numpys(
    cupy: Any, sizes: Any, dtype: Any, layout: str, ignored: int | None, blocks: int
) -> None:
    n, height, shape = sizes
    rows = np.random.default_rng(n).integers(0, height, n)
    values = normal(n, n, *shape).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_rows, "_BLOCKS", blocks)
        found = kernels.add_rows(
            laid(cupy, values, layout), cupy.asarray(rows), (height, *shape), ignored=ignored
        )
    wide = values.astype(np.float64)
    expected = kernels.add_rows(wide, rows, (height, *shape), ignored=ignored)
    agree(cupy, found, expected.astype(dtype), times=max(1, 4 * n // height))


def test_sums_are_the_same_each_time(cupy: Any) -> None:
    rows = cupy.asarray(np.random.default_rng(0).integers(0, 3, 2000))
    values = cupy.asarray(normal(0, 2000, 4).astype(np.float32))
    first, second = (host(kernels.add_rows(values, rows, (3, 4))) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_launches_of_an_embedding(stand_in_cupy: Any) -> None:
    cupy = stand_in_cupy
    weight = tensor(cupy.ones((10, 4), dtype=np.float32), requires_grad=True)
    indices = cupy.asarray(np.array([[1, 2, 1], [3, 3, 9]]))
    y = nn.functional.embedding(indices, weight, padding_idx=3)
    gradient = cupy.ones(y.shape, dtype=np.float32)
    with launches() as seen:
        y.backward(gradient)
    assert seen == ["zeros", "add_rows"]
    assert host(weight.grad)[:, 0].tolist() == [0, 2, 1, 0, 0, 0, 0, 0, 0, 1]


def test_numbers_outside_of_the_table_write_nowhere_else(cupy: Any) -> None:
    """They count from the end or again from the beginning, as CuPy's index does."""
    rows = cupy.asarray(np.array([-1, 3, 0]))
    found = kernels.add_rows(cupy.ones((3, 2), dtype=np.float32), rows, (3, 2))
    assert host(found).tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


def test_what_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"values of shape \(2, 3\) do not fit rows of shape \(2,\)"
    ):
        kernels.add_rows(np.ones((2, 3)), np.zeros(2, int), (4, 2))
    with pytest.raises(IndexError):
        kernels.add_rows(np.ones((2, 3)), np.array([0, 4]), (4, 3))


def test_a_row_sparse_gradient_is_joined_by_the_kernel(cupy: Any) -> None:
    rows, values = np.array([1, 5, 1]), normal(0, 3, 2)
    there = RowSparse(cupy.asarray(rows), cupy.asarray(values), (6, 2))
    here = RowSparse(rows, values, (6, 2))
    agree(cupy, there.to_dense(), here.to_dense())
    agree(cupy, there.coalesce().values, here.coalesce().values)
