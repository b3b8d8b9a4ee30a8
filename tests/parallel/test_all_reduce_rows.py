"""The sum of row-sparse arrays equals the sum of the arrays that they stand for, on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad import parallel, rpc
from telegrad.autograd import RowSparse
from telegrad.testing import Cluster
from tests.collectives import remote_code

SHAPES = [(5, 2), (4,), (3, 2, 2), (6, 0), (0, 3)]
# shape, dtype, rows of each rank, seed
Case = tuple[tuple[int, ...], str, list[list[int]], int]


@st.composite
def cases(draw: st.DrawFn, n: int) -> Case:
    shape = draw(st.sampled_from(SHAPES))
    row = st.integers(0, max(shape[0] - 1, 0))
    rows = [draw(st.lists(row, max_size=7 if shape[0] else 0)) for _ in range(n)]
    dtype = draw(st.sampled_from(["float32", "float64", "int16", "complex64"]))
    return shape, dtype, rows, draw(st.integers(0, 2**16))


def of_each(case: Case) -> list[RowSparse]:
    shape, dtype, rows, seed = case
    rng = np.random.default_rng(seed)
    return [
        RowSparse(
            np.array(each, np.int32),
            (rng.normal(size=(len(each), *shape[1:])) * 100).astype(dtype),
            shape,
        )
        for each in rows
    ]


def reduce_rows(case: Case) -> tuple[bytes, bytes]:
    remote_code.begin()
    operations = dist.world_group().statistics().operations
    arrays = of_each(case)
    total = parallel.all_reduce_rows(arrays[dist.get_rank()])
    assert (total.shape, total.dtype) == (case[0], np.dtype(case[1]))
    assert total.rows.tolist() == sorted({row for rows in case[2] for row in rows})
    wanted: Any = sum(each.to_dense() for each in arrays)
    tolerance = 1e-3 if case[1] in ("float32", "complex64") else 1e-9
    np.testing.assert_allclose(total.to_dense(), wanted, rtol=tolerance, atol=tolerance)
    assert dist.world_group().statistics().operations == operations + 1
    return total.rows.tobytes(), total.values.tobytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_rows_are_added(n: int) -> None:
    with Cluster(n) as cluster:

        @settings(max_examples=30)
        @given(cases(n))
        def check(case: Case) -> None:
            assert len(set(cluster.run(reduce_rows, case))) == 1, "bitwise equal on all ranks"

        check()


def differ(kind: str) -> str:
    remote_code.begin()
    odd = dist.get_rank() == 1
    shape, label = (6 if odd and kind == "rows" else 5, 2), "b" if odd and kind == "label" else "a"
    mine = RowSparse(np.array([1]), np.ones((1, 2)), shape)
    return remote_code.refusal(lambda: parallel.all_reduce_rows(mine, label=label))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("rows", ["all_reduce_rows of shape (5, 2)", "all_reduce_rows of shape (6, 2)"]),
        ("label", ["of shape (5, 2), a'", "of shape (5, 2), b'"]),
    ],
)
def test_ranks_that_differ(kind: str, words: list[str]) -> None:
    with Cluster(3) as cluster:
        for said in cluster.run(differ, kind):
            assert said.startswith("CollectiveMismatchError: "), said
            for word in words:
                assert word in said, (word, said)


def with_wrong_arguments() -> list[str]:
    remote_code.begin()

    def refusal(array: Any) -> str:
        return remote_code.refusal(lambda: parallel.all_reduce_rows(array))

    said = [
        refusal(np.ones(3)),
        refusal(RowSparse(np.array([-1]), np.ones((1, 2)), (3, 2))),
        refusal(RowSparse(np.array([0, 3]), np.ones((2, 2)), (3, 2))),
    ]
    assert dist.world_group().statistics().messages_sent == 0
    return said


def test_wrong_arguments() -> None:
    with Cluster(1) as cluster:
        ((array, below, above),) = cluster.run(with_wrong_arguments)
    assert array.startswith("TypeError: all_reduce_rows takes a RowSparse, not ndarray")
    assert "has rows from 0 to 2, not -1 to -1" in below
    assert "has rows from 0 to 2, not 0 to 3" in above


def with_other_verbs() -> None:
    remote_code.begin()
    rows, verbs = RowSparse(np.array([1]), np.ones((1, 2)), (3, 2)), dist
    calls: list[Any] = [verbs.all_reduce, verbs.broadcast, verbs.reduce, verbs.all_gather]
    for call in calls:
        with pytest.raises(
            TypeError, match=r"RowSparse is summed by telegrad\.parallel\.all_reduce"
        ):
            call(rows)
    assert dist.world_group().statistics().messages_sent == 0


def test_the_other_verbs_name_this_one() -> None:
    """The verbs of `collectives` know arrays alone, as RowSparse belongs to autograd, above them."""
    with Cluster(1) as cluster:
        cluster.run(with_other_verbs)


async def on_a_loop() -> str:
    mine = RowSparse(np.array([1]), np.ones((1, 2)), (3, 2))
    return remote_code.refusal(lambda: parallel.all_reduce_rows(mine))


def test_on_a_loop() -> None:
    with Cluster(2) as cluster:
        cluster.run(remote_code.begin)
        assert "await rpc.to_thread(all_reduce_rows, ...)" in cluster.call(0, calls_on_its_loop)


def calls_on_its_loop() -> str:
    return rpc.rpc_sync(1, on_a_loop)
