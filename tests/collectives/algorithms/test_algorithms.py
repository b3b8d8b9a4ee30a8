"""The algorithms against NumPy, over links without a network; their steps and bytes are counted."""

from __future__ import annotations

import math
import warnings
from functools import reduce
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from telegrad.collectives import ReduceOp
from telegrad.collectives.algorithms import chain, circulant, direct, ring, star, tree
from telegrad.collectives.link import EAGER_BYTES
from telegrad.collectives.messages import Signature
from telegrad.collectives.reduction import PremulSum, check_reducible, finish
from telegrad.collectives.select import (
    DEFAULT,
    select_all_gather,
    select_all_reduce,
    select_broadcast,
    select_reduce,
)
from telegrad.errors import CollectiveMismatchError, DecodeError
from telegrad.types import Array
from tests.collectives.fake_link import FakeJob, arrays_for, rounds_of

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
IN_ORDER = [direct.all_reduce, circulant.all_reduce_in_order]
ALL_REDUCES = [*IN_ORDER, circulant.all_reduce, ring.all_reduce]


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
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def expected(op: ReduceOp, arrays: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        total: Any = reduce(UFUNCS[op], arrays)
        if op is ReduceOp.AVG:
            total = (total / len(arrays)).astype(total.dtype)
    return np.asarray(total)


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@given(
    st.sampled_from([*CASES, (ReduceOp.SUM, ">f4")]),
    st.integers(1, 9),
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
    tolerance = {"float16": 2e-2, "float32": 1e-5, "complex64": 1e-5, ">f4": 1e-5}.get(dtype, 1e-12)
    np.testing.assert_allclose(arrays[0], expected(op, before), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("algorithm", IN_ORDER)
def test_adds_in_rank_order(algorithm: Any) -> None:
    arrays = [np.array([x], np.float32) for x in (1e8, 1.0, -1e8, 1.0)]
    FakeJob(arrays).run(lambda link, flat: algorithm(link, flat, ReduceOp.SUM))
    assert [array[0] for array in arrays] == [np.float32(1.0)] * 4


@given(st.sampled_from(CASES), st.integers(1, 12), st.integers(0, 9), st.integers(0, 2**16))
def test_the_same_bits_in_order(case: tuple[ReduceOp, str], n: int, size: int, seed: int) -> None:
    op, dtype = case
    found, same = arrays_for(n, size, dtype, seed), arrays_for(n, size, dtype, seed)
    FakeJob(found, seed).run(lambda link, flat: direct.all_reduce(link, flat, op))
    FakeJob(same, seed).run(lambda link, flat: circulant.all_reduce_in_order(link, flat, op))
    assert [array.tobytes() for array in found] == [array.tobytes() for array in same]


@pytest.mark.parametrize("algorithm", [tree.broadcast, chain.broadcast])
@given(
    st.integers(1, 9),
    st.integers(0, 8),
    st.sampled_from([0, 1, 5, 16, 50]),
    st.sampled_from([*DTYPES, "datetime64[s]", "U3"]),
    st.integers(0, 2**16),
)
def test_broadcast(algorithm: Any, n: int, root: int, size: int, dtype: str, seed: int) -> None:
    root %= n
    arrays = [np.arange(r, r + size).astype(dtype) for r in range(n)]
    source = arrays[root].copy()
    job = FakeJob(arrays, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "STEP_BYTES", 32)
        job.run(lambda link, flat: algorithm(link, flat, root))
        segments = chain.segments(source.nbytes, n)
    for array in arrays:
        np.testing.assert_array_equal(array, source)
    messages = n - 1 if algorithm is tree.broadcast else (n - 1) * segments
    assert sum(link.messages for link in job.links) == messages
    assert sum(link.nbytes for link in job.links) == (n - 1) * source.nbytes


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [direct.all_gather, circulant.all_gather])
@given(st.integers(1, 12), st.booleans(), st.integers(0, 2**16))
def test_all_gather(algorithm: Any, n: int, joined: bool, seed: int) -> None:
    shapes = [(), (0,), (3,), (2, 2), (1, 0, 4), (5, 1), (2,), (7,)]
    arrays = [np.full(shapes[(r + seed) % 8], r, np.int16) for r in range(n)]
    job = FakeJob(arrays, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(circulant, "JOINED_UP_TO_BYTES", 100 if joined else 28)
        found = job.run(lambda link, array: algorithm(link, array))
    for gathered in found:
        for mine, theirs in zip(gathered, arrays, strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            assert mine.flags.writeable
            assert not np.shares_memory(mine, theirs)
            np.testing.assert_array_equal(mine, theirs)
        for mine in gathered:
            mine[...] = -1
    if algorithm is circulant.all_gather:
        nbytes = [16 + 8 * array.ndim + array.nbytes for array in arrays]
        alone = 0 if joined else sum(each - 8 > 28 for each in nbytes)
        assert sum(link.nbytes for link in job.links) == (n - 1) * sum(nbytes)
        assert sum(link.messages for link in job.links) == n * rounds_of(n) + (n - 1) * alone


@pytest.mark.parametrize(
    "data", [b"", bytes(7), b"\xff" * 8, bytes(8), b"\x08" + bytes(14) + b"\x01"]
)
def test_blocks_that_no_rank_sends(data: bytes) -> None:
    job = FakeJob([np.zeros(2), np.zeros(2)])
    job.links[1].send(0, data)
    with pytest.raises(DecodeError):
        circulant.all_gather(job.links[0], np.zeros(2)).send(None)


@pytest.mark.long
@example([[True] * 4] * 4, 0)
@given(
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=4, max_size=4),
    st.integers(0, 2**16),
)
def test_large_parts_are_sent_one_after_another(large: list[list[bool]], seed: int) -> None:
    """Each rank decides for its own parts, so the ranks need not agree."""
    n = 4
    parts = [[np.full(9 if large[r][q] else 1, 10 * r + q) for q in range(n)] for r in range(n)]
    calls = [
        Signature(operation="all_to_all", parts=tuple(part.shape for part in mine))
        for mine in parts
    ]
    job = FakeJob([np.zeros(0)] * n, seed, calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "AT_ONCE_UP_TO_BYTES", 8)
        found = job.run(lambda link, _: direct.all_to_all(link, parts[link.rank]))
        reducing = FakeJob([np.zeros(0)] * n, seed)
        same = [[np.full(9 if large[0][q] else 1, 2.0**r) for q in range(n)] for r in range(n)]
        sums = reducing.run(
            lambda link, _: direct.reduce_scatter(link, same[link.rank], ReduceOp.SUM)
        )
    for r in range(n):
        for q, part in enumerate(found[r]):
            np.testing.assert_array_equal(part, parts[q][r])
        np.testing.assert_array_equal(sums[r], np.full(same[0][r].shape, 15.0))
    if all(all(mine) for mine in large):
        assert job.steps == reducing.steps == n - 1
    for r, link in enumerate(job.links):
        assert link.messages == n - 1
        assert link.nbytes == sum(part.nbytes for q, part in enumerate(parts[r]) if q != r)


# -- one root, and parts for each rank -------------------------------------------------------


def is_rounded_by_place(op: ReduceOp, dtype: str) -> bool:
    """NumPy's vector instructions fuse the sums of a complex product, its code for the rest not."""
    return op is ReduceOp.PRODUCT and np.dtype(dtype).kind == "c"


@given(st.integers(2, 6), st.integers(0, 500), st.integers(0, 2**16))
def test_a_ring_of_many_segments_has_few_under_way(n: int, size: int, seed: int) -> None:
    arrays = arrays_for(n, size, "int64", seed)
    total = np.sum(arrays, axis=0)
    with patch.object(ring, "SEGMENT_BYTES", 64):
        m = ring.segments(arrays[0].nbytes // n)
        job = FakeJob(arrays, seed)
        job.run(lambda link, flat: ring.all_reduce(link, flat, ReduceOp.SUM))
    for link, array in zip(job.links, arrays, strict=True):
        np.testing.assert_array_equal(array, total)
        assert link.messages == 2 * (n - 1) * m
    assert job.steps == 2 * (n - 1) + math.ceil(m / ring.AT_ONCE) - 1
    # For a rank that is late, of each rank's own segments in all steps; however many there are.
    assert job.most_waiting <= ring.AT_ONCE * n * 2 * (n - 1)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [star.reduce, star.reduce_in_blocks])
@given(
    st.sampled_from(CASES),
    st.integers(1, 6),
    st.integers(0, 5),
    st.sampled_from([0, 1, 3, 7, 16]),
    st.integers(0, 2**16),
)
def test_reduce(
    algorithm: Any, case: tuple[ReduceOp, str], n: int, root: int, size: int, seed: int
) -> None:
    (op, dtype), root = case, root % n
    arrays = arrays_for(n, size, dtype, seed)
    before = [array.copy() for array in arrays]
    FakeJob(arrays, seed).run(lambda link, flat: algorithm(link, flat, op, root))
    same = [array.copy() for array in before]
    FakeJob(same).run(lambda link, flat: direct.all_reduce(link, flat, op))
    if is_rounded_by_place(op, dtype):
        np.testing.assert_allclose(arrays[root], same[0], rtol=1e-5)
    else:
        assert arrays[root].tobytes() == same[0].tobytes(), "the bits of all_reduce"
    for r in range(n):
        if r != root:
            np.testing.assert_array_equal(arrays[r], before[r])


@given(st.sampled_from(CASES), st.integers(1, 6), st.data())
def test_reduce_scatter(case: tuple[ReduceOp, str], n: int, data: st.DataObject) -> None:
    op, dtype = case
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    seed = data.draw(st.integers(0, 2**16))
    arrays = arrays_for(n, sum(sizes), dtype, seed)
    ends = np.cumsum(sizes)[:-1]
    job = FakeJob(arrays, seed)
    reduced = job.run(lambda link, flat: direct.reduce_scatter(link, np.split(flat, ends), op))
    FakeJob(arrays).run(lambda link, flat: direct.all_reduce(link, flat, op))
    for r, part in enumerate(np.split(arrays[0], ends)):
        if is_rounded_by_place(op, dtype):
            np.testing.assert_allclose(reduced[r], part, rtol=1e-5)
        else:
            assert reduced[r].tobytes() == part.tobytes()
        assert reduced[r].dtype == part.dtype
    assert job.steps == min(n - 1, 1)
    for r, link in enumerate(job.links):
        others = (sum(sizes) - sizes[r]) * arrays[0].itemsize
        assert (link.messages, link.nbytes, link.signals) == (n - 1, others, 0)


SHAPES = [(), (0,), (3,), (2, 2), (1, 0, 4), (5, 1)]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**16))
def test_gather(n: int, root: int, seed: int) -> None:
    root %= n
    arrays = [np.full(SHAPES[r], r, np.int16) for r in range(n)]
    job = FakeJob(arrays, seed)
    found = job.run(lambda link, array: star.gather(link, array, root))
    for r, gathered in enumerate(found):
        if r != root:
            assert gathered is None
            continue
        for mine, theirs in zip(gathered, arrays, strict=True):
            assert mine.shape == theirs.shape
            assert not np.shares_memory(mine, theirs)
            np.testing.assert_array_equal(mine, theirs)
    assert job.steps == rounds_of(n)
    for r, link in enumerate(job.links):
        assert (link.messages, link.nbytes) == ((0, 0) if r == root else (1, arrays[r].nbytes))
        assert link.signals == rounds_of(n)


def scatter_calls(shapes: list[Any], parts: list[Array], root: int) -> list[Signature]:
    stated = tuple(part.shape for part in parts)
    return [
        Signature(operation="scatter", root=root, shape=shape, parts=stated if r == root else ())
        for r, shape in enumerate(shapes)
    ]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**16))
def test_scatter(n: int, root: int, seed: int) -> None:
    root %= n
    parts = [np.full(SHAPES[r], r, np.int16) for r in range(n)]
    arrays = [np.full_like(part, -1).reshape(-1) for part in parts]
    job = FakeJob(arrays, seed, scatter_calls([part.shape for part in parts], parts, root))
    flat = [part.reshape(-1) for part in parts]
    job.run(lambda link, array: star.scatter(link, array, flat if link.rank == root else [], root))
    for r in range(n):
        np.testing.assert_array_equal(arrays[r], flat[r])
    assert job.steps == (1 + rounds_of(n) if n > 1 else 0)
    for r, link in enumerate(job.links):
        sent = (n - 1, sum(part.nbytes for part in parts) - parts[r].nbytes)
        assert (link.messages, link.nbytes) == (sent if r == root else (0, 0))
        assert link.signals == rounds_of(n)


def test_no_rank_leaves_a_scatter_of_which_one_part_does_not_fit() -> None:
    parts = [np.zeros(2), np.zeros(3), np.zeros(2)]
    job = FakeJob([np.zeros(2)] * 3, 0, scatter_calls([(2,)] * 3, parts, 0))
    running = [
        star.scatter(link, np.zeros(2), parts if link.rank == 0 else [], 0) for link in job.links
    ]
    running[0].send(None)
    with pytest.raises(CollectiveMismatchError, match=r"ranks \[0, 1\]"):
        running[1].send(None)
    for _ in range(5):
        running[0].send(None)  # would raise StopIteration
        running[2].send(None)
    running[0].close()
    running[2].close()


@given(st.integers(1, 6), st.integers(0, 2**16))
def test_all_to_all(n: int, seed: int) -> None:
    parts = [
        [np.full(SHAPES[(r + q) % 6], 10 * r + q, np.int16) for q in range(n)] for r in range(n)
    ]
    calls = [
        Signature(operation="all_to_all", parts=tuple(part.shape for part in mine))
        for mine in parts
    ]
    job = FakeJob([np.zeros(0)] * n, seed, calls)
    for r, received in enumerate(
        job.run(lambda link, _: direct.all_to_all(link, parts[link.rank]))
    ):
        for q, part in enumerate(received):
            assert part.shape == parts[q][r].shape
            assert not np.shares_memory(part, parts[q][r])
            np.testing.assert_array_equal(part, parts[q][r])
    assert job.steps == min(n - 1, 1)
    for r, link in enumerate(job.links):
        others = sum(part.nbytes for part in parts[r]) - parts[r][r].nbytes
        assert (link.messages, link.nbytes, link.signals) == (n - 1, others, 0)


def test_all_ranks_see_that_two_of_them_disagree() -> None:
    parts = [np.zeros(1)] * 3
    calls = [
        Signature(operation="all_to_all_single", parts=((1,),) * 3, wanted=wanted)
        for wanted in ((), ((1,), (1,), (2,)), ())
    ]
    job = FakeJob([np.zeros(0)] * 3, 0, calls)
    running = [direct.all_to_all(link, parts) for link in job.links]
    for steps in running[:2]:
        steps.send(None)
    for steps in reversed(running):
        with pytest.raises(CollectiveMismatchError, match=r"ranks \[1, 2\]"):
            steps.send(None)


def test_which_algorithm() -> None:
    small, large = DEFAULT.direct_up_to_bytes, 2**30
    for n in range(1, 70):
        assert select_reduce(small, n) is star.reduce
        in_order = direct.all_reduce if n <= 8 else circulant.all_reduce_in_order
        assert select_all_reduce(min(4096 * n, small), n) is in_order
        if n < 64:
            assert select_all_reduce(4096 * n + 1, n) is direct.all_reduce
        gather = direct.all_gather if n < 16 else circulant.all_gather
        assert select_all_gather(n) is gather
        assert select_broadcast(n * 2**20, n) is tree.broadcast
        assert select_broadcast(large, n) is (tree.broadcast if n < 3 else chain.broadcast)
        if n > 1:
            assert select_reduce(small + 1, n) is star.reduce_in_blocks
            middle = ring.all_reduce if n <= 8 else circulant.all_reduce
            assert select_all_reduce(small + 1, n) is middle
            assert select_all_reduce(n * small, n) is middle
            assert select_all_reduce(n * small + 1, n) is ring.all_reduce
    assert select_reduce(large, 1) is star.reduce
    assert select_all_reduce(large, 1) is direct.all_reduce


@given(st.integers(1, 40), st.integers(0, 2**26))
def test_segments_wait_for_their_receiver(n: int, nbytes: int) -> None:
    """A chain sends nothing before the next rank asks for it."""
    if select_broadcast(nbytes, n) is chain.broadcast:
        assert nbytes // chain.segments(nbytes, n) > EAGER_BYTES


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
        (ReduceOp.BAND, "float32", ValueError, "bits of integers"),
        (ReduceOp.BXOR, ml_dtypes.bfloat16, ValueError, "bits of integers"),
        (ReduceOp.PREMUL_SUM(2), "bool", ValueError, "PREMUL_SUM has no meaning for booleans"),
        (ReduceOp.SUM, "datetime64[s]", TypeError, "datetime64"),
        (ReduceOp.SUM, "U3", TypeError, "<U3"),
        ("sum", "float32", TypeError, "ReduceOp.SUM"),
    ],
)
def test_what_has_no_meaning(op: Any, dtype: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_reducible(op, np.dtype(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES[:-3], "complex64", ">f4", ml_dtypes.bfloat16])
def test_a_factor(dtype: Any) -> None:
    array = np.array([[1, 2, 3], [4, 5, 6]]).astype(dtype)
    for factor in (3, 3.0, np.int8(3), np.array([1, 2, 3]), np.array([[2], [3]], np.float32)):
        product = PremulSum(factor).times(array)
        assert product.dtype == array.dtype
        assert product.shape == array.shape
        np.testing.assert_array_equal(
            product.astype(complex), np.multiply(array.astype(complex), factor)
        )


@pytest.mark.parametrize(
    ("factor", "dtype", "error", "words"),
    [
        (0.5, "int32", ValueError, "would have to be rounded"),
        (300, "int8", ValueError, "no exact value"),
        (-1, "uint8", ValueError, "no exact value"),
        (float("nan"), "int64", ValueError, "no exact value"),
        (2.0**63, "int64", ValueError, "no exact value"),
        (1j, "float64", ValueError, "complex"),
        (np.ones(2), "float64", ValueError, "shape"),
        (np.ones((2, 3)), "float64", ValueError, r"\(2, 3\)"),
        ("2", "float64", TypeError, "'2'"),
        (True, "float64", TypeError, "True"),
        (None, "float64", TypeError, "None"),
        (2**70, "float64", TypeError, "factor"),
    ],
)
def test_a_factor_that_does_not_fit(
    factor: Any, dtype: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        PremulSum(factor).times(np.ones(3, dtype))
