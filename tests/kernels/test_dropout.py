"""Dropout: the random numbers of Philox, and the kernel against its twin of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn
from telegrad.autograd import tensor
from telegrad.kernels.philox import _words
from tests.gpu.comparison import host, normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, EDGES, few, laid, layouts, small_grid

__all__ = ["small_grid"]

SHAPES = st.one_of(
    st.sampled_from([(n,) for n in EDGES]), st.lists(st.integers(0, 9), min_size=1).map(tuple)
)


@few
@given(
    SHAPES,
    st.sampled_from(DTYPES),
    layouts,
    st.integers(0, 2**63 - 1),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_the_mask_is_that_of_numpy(
    cupy: Any, shape: Any, dtype: Any, layout: str, key: int, p: float
) -> None:
    x = (3 + np.random.default_rng(0).normal(size=shape)).astype(dtype)
    found = host(kernels.dropout(laid(cupy, x, layout), key=key, p=p))
    expected: Any = kernels.dropout(x, key=key, p=p)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == dtype


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_items_than_threads(cupy: Any, dtype: Any) -> None:
    x = np.ones(10001, dtype)
    found = host(kernels.dropout(cupy.asarray(x), key=7, p=0.5))
    np.testing.assert_array_equal(found, kernels.dropout(x, key=7, p=0.5))


def test_the_words_are_those_of_the_paper() -> None:
    # Known answer of Random123 for all bits zero.
    assert _words(0, 0, 1)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_a_part_of_an_array_has_a_part_of_the_mask() -> None:
    x = np.ones(200_003, np.float32)
    whole: Any = kernels.dropout(x, key=3, p=0.3)
    np.testing.assert_array_equal(kernels.dropout(x[:77], key=3, p=0.3), whole[:77])
    assert (whole == 0).mean() == pytest.approx(0.3, abs=0.01)
    assert (kernels.dropout(x, key=4, p=0.3) != whole).any()


def test_infinite_numbers_are_dropped_too(cupy: Any) -> None:
    x = np.full(100, np.inf, np.float32)
    for array in (x, cupy.asarray(x)):
        assert set(host(kernels.dropout(array, key=1, p=0.5)).tolist()) == {0.0, np.inf}


def test_one_launch_each_way(stand_in_cupy: Any) -> None:
    x = tensor(stand_in_cupy.asarray(normal(0, 3, 5, dtype=np.float32)), requires_grad=True)
    with launches() as forward:
        y = nn.functional.dropout(x, 0.5)
    with launches() as backward:
        y.backward(y.data)
    assert forward == ["dropout"]
    assert backward == ["dropout"]


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="dropout takes floating-point numbers, not int64"):
        nn.functional.dropout(np.arange(3))
