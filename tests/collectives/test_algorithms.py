"""The algorithms against NumPy, over links without a network; their steps and bytes are counted."""

from __future__ import annotations

import math
import warnings
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.collectives import ReduceOp
from telegrad.collectives.algorithms import direct, dissemination, ring, tree
from telegrad.collectives.reduction import check_reducible, finish
from telegrad.collectives.select import DIRECT_UP_TO_BYTES, select_all_reduce
from telegrad.types import Array
from tests.collectives.fake_link import FakeJob, arrays_for

DTYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int32",
    "int64",
    "bool",
    "complex64",
    "complex128",
]
ALL_REDUCES = [direct.all_reduce, ring.all_reduce]


def meaningful(op: ReduceOp, dtype: str) -> bool:
    try:
        check_reducible(op, np.dtype(dtype))
    except ValueError:
        return False
    return True


CASES = [(op, dtype) for op in ReduceOp for dtype in DTYPES if meaningful(op, dtype)]
UFUNCS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


def expected(op: ReduceOp, arrays: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        total: Any = reduce(UFUNCS[op], arrays)
        if op is ReduceOp.AVG:
            total = (total / len(arrays)).astype(total.dtype)
    return np.asarray(total)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@given(
    st.sampled_from(CASES),
    st.integers(1, 8),
    st.sampled_from([0, 1, 2, 3, 5, 7, 16, 23]),
    st.integers(0, 2**16),
)
def test_all_reduce(
    algorithm: Any, case: tuple[ReduceOp, str], n: int, size: int, seed: int
) -> None:
    op, dtype = case
    arrays = arrays_for(n, size, dtype, seed)
    before = [array.copy() for array in arrays]
    if n == 1 and algorithm is ring.all_reduce:
        return  # a ring has at least two
    FakeJob(arrays, seed).run(lambda link, flat: algorithm(link, flat, op))
    for array in arrays:
        assert array.tobytes() == arrays[0].tobytes(), "bitwise equal on all ranks"
        assert array.dtype == before[0].dtype
    tolerance = {"float16": 2e-2, "float32": 1e-5, "complex64": 1e-5}.get(dtype, 1e-12)
    np.testing.assert_allclose(arrays[0], expected(op, before), rtol=tolerance, atol=tolerance)


def test_direct_adds_in_rank_order() -> None:
    arrays = [np.array([x], np.float32) for x in (1e8, 1.0, -1e8, 1.0)]
    FakeJob(arrays).run(lambda link, flat: direct.all_reduce(link, flat, ReduceOp.SUM))
    assert [array[0] for array in arrays] == [np.float32(1.0)] * 4


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("size", [0, 7, 16])
def test_cost_of_direct(n: int, size: int) -> None:
    arrays = arrays_for(n, size, "float64")
    job = FakeJob(arrays)
    job.run(lambda link, flat: direct.all_reduce(link, flat, ReduceOp.SUM))
    assert job.steps == min(n - 1, 1)
    for link in job.links:
        assert (link.messages, link.nbytes, link.signals) == (n - 1, (n - 1) * size * 8, 0)


@pytest.mark.parametrize("n", range(2, 9))
@pytest.mark.parametrize("size", [0, 1, 7, 16, 840])
def test_cost_of_the_ring(n: int, size: int) -> None:
    arrays = arrays_for(n, size, "float64")
    job = FakeJob(arrays)
    job.run(lambda link, flat: ring.all_reduce(link, flat, ReduceOp.SUM))
    assert job.steps == 2 * (n - 1)
    bounds = ring.block_bounds(size, n)
    blocks = [(bounds[b + 1] - bounds[b]) * 8 for b in range(n)]
    assert max(blocks) - min(blocks) <= 8
    for r, link in enumerate(job.links):
        assert (link.messages, link.signals) == (2 * (n - 1), 0)
        assert link.nbytes == 2 * size * 8 - blocks[(r + 1) % n] - blocks[(r + 2) % n]
        if size % n == 0:
            assert link.nbytes == 2 * (n - 1) * size * 8 // n


def test_the_ring_writes_nothing_before_every_rank_has_come() -> None:
    arrays = arrays_for(3, 9, "float64")
    before = [array.copy() for array in arrays]
    job = FakeJob(arrays)
    running = [
        ring.all_reduce(link, array, ReduceOp.SUM)
        for link, array in zip(job.links[:2], arrays[:2], strict=True)
    ]
    for _ in range(20):
        for steps in running:
            steps.send(None)
    for array, untouched in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, untouched)
    for steps in running:
        steps.close()


@pytest.mark.parametrize("n", range(1, 10))
def test_cost_of_dissemination(n: int) -> None:
    job = FakeJob(arrays_for(n, 0, "float64"))
    job.run(lambda link, _: dissemination.barrier(link))
    rounds = math.ceil(math.log2(n))
    assert job.steps == rounds
    assert [(link.messages, link.signals) for link in job.links] == [(0, rounds)] * n


@pytest.mark.parametrize("n", range(2, 9))
def test_nobody_leaves_dissemination_before_all_have_come(n: int) -> None:
    job = FakeJob(arrays_for(n, 0, "float64"))
    early = [dissemination.barrier(link) for link in job.links[1:]]
    for _ in range(n):
        for steps in early:
            steps.send(None)  # would raise StopIteration
    for steps in early:
        steps.close()


@given(
    st.integers(1, 8),
    st.integers(0, 7),
    st.sampled_from([0, 1, 5, 16]),
    st.sampled_from([*DTYPES, "datetime64[s]", "U3"]),
    st.integers(0, 2**16),
)
def test_broadcast(n: int, root: int, size: int, dtype: str, seed: int) -> None:
    root %= n
    arrays = [np.arange(r, r + size).astype(dtype) for r in range(n)]
    source = arrays[root].copy()
    job = FakeJob(arrays, seed)
    job.run(lambda link, flat: tree.broadcast(link, flat, root))
    for array in arrays:
        np.testing.assert_array_equal(array, source)
    rounds = math.ceil(math.log2(n))
    depth = max((place.bit_count() for place in range(1, n)), default=1)
    assert job.steps == rounds + depth - 1 <= max(2 * rounds - 1, 0)
    assert sum(link.messages for link in job.links) == n - 1
    assert sum(link.nbytes for link in job.links) == (n - 1) * source.nbytes
    assert job.links[root].messages == rounds
    assert {link.signals for link in job.links} == {rounds}


@given(st.integers(1, 8), st.integers(0, 2**16))
def test_all_gather(n: int, seed: int) -> None:
    shapes = [(), (0,), (3,), (2, 2), (1, 0, 4), (5, 1), (2,), (7,)]
    arrays = [np.full(shapes[r], r, np.int16) for r in range(n)]
    job = FakeJob(arrays, seed)
    for gathered in job.run(lambda link, array: direct.all_gather(link, array)):
        for mine, theirs in zip(gathered, arrays, strict=True):
            assert mine.shape == theirs.shape
            assert mine.flags.writeable
            assert not np.shares_memory(mine, theirs)
            np.testing.assert_array_equal(mine, theirs)
    assert job.steps == min(n - 1, 1)
    for link, array in zip(job.links, arrays, strict=True):
        assert (link.messages, link.nbytes) == (n - 1, (n - 1) * array.nbytes)


def test_which_algorithm() -> None:
    assert select_all_reduce(DIRECT_UP_TO_BYTES, 4) is direct.all_reduce
    assert select_all_reduce(DIRECT_UP_TO_BYTES + 1, 2) is ring.all_reduce
    assert select_all_reduce(2**30, 1) is direct.all_reduce


# -- reductions ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.complex64])
def test_the_average_of_many_ranks(dtype: Any) -> None:
    """257 has no value in bfloat16, and must not become 256."""
    total = np.array([514.0, 3.0]).astype(dtype)
    wide: Any = np.complex128 if dtype is np.complex64 else np.float64
    exact = (total.astype(wide) / 257).astype(dtype)
    finish(ReduceOp.AVG, total, 257)
    assert total.dtype == dtype
    np.testing.assert_array_equal(total, exact)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_overflow_is_silent_and_nan_goes_through(algorithm: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays = [np.array([6e4, np.nan], np.float16) for _ in range(2)]
        FakeJob(arrays).run(lambda link, flat: algorithm(link, flat, ReduceOp.SUM))
        assert np.isinf(arrays[1][0])
        least = [np.array([np.nan if r else 1.0, 2.0]) for r in range(2)]
        FakeJob(least).run(lambda link, flat: algorithm(link, flat, ReduceOp.MIN))
        assert np.isnan(least[0][0])


@pytest.mark.parametrize(
    ("op", "dtype", "error", "words"),
    [
        (ReduceOp.SUM, "bool", ValueError, "MAX for any"),
        (ReduceOp.MIN, "complex64", ValueError, "no order"),
        (ReduceOp.AVG, "int32", ValueError, "rounded"),
        (ReduceOp.SUM, "datetime64[s]", TypeError, "datetime64"),
        (ReduceOp.SUM, "U3", TypeError, "<U3"),
        ("sum", "float32", TypeError, "ReduceOp.SUM"),
    ],
)
def test_what_has_no_meaning(op: Any, dtype: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_reducible(op, np.dtype(dtype))
