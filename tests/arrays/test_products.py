"""Products of many matrices on a GPU: every layout that cuBLAS takes, and those that are copied."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.arrays import batched_product
from tests.gpu.comparison import host
from tests.gpu.launches import launches
from tests.gpu.stand_in.stand_in import stand_in
from tests.kernels.strided import DTYPES, few

SIZES = st.sampled_from([0, 1, 2, 5])
ORDERS = st.permutations(range(4))


def laid(xp: Any, values: Any, order: Any) -> Any:
    """Returns an array of these values whose axes lie in memory in some order."""
    made = xp.empty(tuple(values.shape[axis] for axis in order), values.dtype)
    made = made.transpose(tuple(np.argsort(order)))
    made[...] = xp.asarray(values)
    return made


@few
@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.sampled_from(DTYPES), ORDERS, ORDERS, st.booleans())
def test_products_are_those_of_numpy(
    cupy: Any,
    batch: int,
    heads: int,
    m: int,
    n: int,
    k: int,
    dtype: Any,
    first: Any,
    second: Any,
    own: bool,
) -> None:
    xp = cupy
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(batch, heads, *s)).astype(dtype) for s in ((m, k), (k, n)))
    out = xp.empty((batch, heads, m, n), dtype=dtype) if own else None
    found = batched_product(laid(xp, a, first), laid(xp, b, second), out, factor=0.5)
    assert out is None or found is out
    assert found.shape == (batch, heads, m, n)
    expected = 0.5 * a.astype(np.float64) @ b.astype(np.float64)
    rounding = 16 * float(np.finfo(np.float16).eps if np.dtype(dtype).itemsize == 2 else 1e-7)
    rounding *= 8 if np.dtype(dtype).name == "bfloat16" else 1
    np.testing.assert_allclose(
        host(found).astype(np.float64), expected, rtol=rounding, atol=rounding
    )


@pytest.mark.parametrize("turned", [False, True])
def test_turned_matrices_are_not_copied(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    stand_in_cupy = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", stand_in_cupy)
    a, b = stand_in_cupy.ones((2, 3, 4, 5)), stand_in_cupy.ones((2, 3, 6, 5))
    if turned:
        a = stand_in_cupy.ones((2, 3, 5, 4)).swapaxes(-1, -2)
    with launches() as names:
        batched_product(a, b.swapaxes(-1, -2))
    assert names == ["gemm"]
