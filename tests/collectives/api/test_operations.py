"""All operations between agents of one process, and between processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import tensor
from telegrad.collectives import ReduceOp
from telegrad.collectives import failure as clock
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.collectives.promises.test_programs import every_verb, run_program
from tests.collectives.remote_code import LARGE


@pytest.mark.long
def test_all_gather_of_many_ranks() -> None:
    with Cluster(16) as cluster:
        for found in cluster.run(remote_code.gathers, 16):
            assert found == [(r, r % 3) for r in range(16)]


def test_alone() -> None:
    with Cluster(1) as cluster:
        (alone,) = cluster.run(alone_in_the_job)
    np.testing.assert_array_equal(alone, np.arange(3.0))


def alone_in_the_job() -> Any:
    remote_code.begin()
    array = np.arange(3.0)
    for copies in (dist.gather(array), dist.all_to_all([array])):
        assert copies is not None
        np.testing.assert_array_equal(copies[0], array)
        assert not np.shares_memory(copies[0], array)
    for copy in (dist.all_gather_single(array), dist.all_to_all_single(array, [3])):
        np.testing.assert_array_equal(copy, array)
        assert not np.shares_memory(copy, array)
    dist.barrier()
    (gathered,) = dist.all_gather(array)
    assert not np.shares_memory(gathered, array)
    group = dist.new_group([0])
    dist.all_reduce(array, group=group)
    return array


def check_many_at_once(cluster: Cluster, count: int, size: int) -> None:
    for sums in cluster.run(remote_code.many_at_once, count, size):
        assert sums == [(3.0 * i + 3.0) * size for i in range(count)]


@pytest.mark.long
def test_more_under_way_than_may_go_unasked() -> None:
    """200 KiB each: 20 at a time; none may wait for one that waits for it."""
    with Cluster(3) as cluster:
        check_many_at_once(cluster, 60, 25_000)


def check_subgroups(cluster: Cluster) -> None:
    first, second, third = cluster.run(remote_code.in_subgroups)
    assert first["pair"] == ("[0, 2]", 0, 2, [0, 2])
    assert second["pair"] == ("[0, 2]", -1, 2, [0, 2])
    assert third["turned"] == ("[2, 1]", 0, 2, [2, 1])
    assert second["turned"] == ("[2, 1]", 1, 2, [2, 1])
    assert first["again"] == ("[0, 2] #2", 0, 2, [0, 2])
    assert (first["pair sum"], third["pair sum"], third["turned sum"]) == (4.0, 4.0, 5.0)


def test_an_operation_that_is_over_holds_no_array() -> None:
    with Cluster(2) as cluster:
        cluster.run(remote_code.freed)


@pytest.fixture
def _nobody_tells_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for long says so, in messages that a test which counts does not know of."""
    monkeypatch.setattr(clock, "TELL_AFTER", 1000.0)


@pytest.mark.few(1)
@pytest.mark.usefixtures("_nobody_tells_that_it_waits")
@pytest.mark.parametrize("size", [1000, 25_000, LARGE])
def test_more_messages_than_may_go_unasked(size: int) -> None:
    count = 50
    with Cluster(2) as cluster:
        sent, taken = cluster.run(remote_code.more_than_the_allowance, size, count)
    assert taken == [*map(float, range(count)), -1.0]
    asked = sent[0] - (count + 1)  # one message each asks, where it may not go at once
    if size == 1000:
        assert asked == 0
    elif size == LARGE:
        assert asked == count + 1
    else:
        assert 0 < asked < count


def check_awaited(cluster: Cluster) -> None:
    found: list[Any] = cluster.run(remote_code.awaited)
    assert found == [[3.0, 3.0, 3.0]] * 3


def test_on_the_user_loop() -> None:
    with Cluster(2) as cluster:
        for words in cluster.run(remote_code.calls_blocks_the_user_loop):
            assert words.startswith("BlockingCallError: barrier() would block")
            assert "`await rpc.to_thread(barrier, ...)`" in words
            assert "or async_op=True and await the Work" in words
            assert words.endswith("2.0")


@pytest.mark.parametrize(
    "sizes", [(0, 7, LARGE), pytest.param((2**20,), marks=pytest.mark.long)], ids=repr
)
def test_between_processes(sizes: tuple[int, ...]) -> None:
    with Cluster(3, processes=True) as cluster:
        cluster.run(run_program, every_verb(3, sizes))
        check_many_at_once(cluster, 20, 10)
        check_many_at_once(cluster, 8, LARGE)
        check_subgroups(cluster)
        check_awaited(cluster)
        assert cluster.run(remote_code.through_a_call)[0] == [6.0, 6.0, 6.0]


# -- arrays --------------------------------------------------------------------------------


def on_odd_arrays() -> None:
    r = remote_code.begin()
    records = np.zeros(2, dtype=[("a", np.int16), ("b", np.float64)])
    records["b"] = r
    dist.broadcast(records, 1)
    assert records["b"].tolist() == [1.0, 1.0]
    whole = np.zeros((4, 6))
    whole[::2, ::3] = r + 1
    dist.all_reduce(whole[::2, ::3])
    assert (whole[::2, ::3] == 3).all()
    assert whole.sum() == 3 * 4, "nothing beside the items is written"
    strided = np.zeros((5, 5))
    if r == 0:
        dist.send(np.eye(5)[:, ::2], 1)
    else:
        dist.recv(strided[:, 1:4], 0)
        np.testing.assert_array_equal(strided[:, 1:4], np.eye(5)[:, ::2])


def test_odd_arrays() -> None:
    with Cluster(2) as cluster:
        cluster.run(on_odd_arrays)


def changed_at_once() -> None:
    """The array may be changed as soon as an operation is over; who is slower must not see it."""
    r = remote_code.begin()
    for size in (3, LARGE):
        for _ in range(5):
            array = np.full(size, 1.0)
            dist.all_reduce(array)
            assert (array == 2.0).all()
            array[...] = np.nan
            own = np.full(size, float(r))
            gathered = dist.all_gather(own)
            own[...] = np.nan
            assert (gathered[1 - r] == 1 - r).all()
            gathered[1 - r][...] = np.nan
            root = np.full(size, float(r))
            dist.broadcast(root, 1)
            assert (root == 1.0).all()
            root[...] = np.nan
            if r == 0:
                dist.send(own, 1)
                own[...] = 0.0
            else:
                dist.recv(own, 0)
                assert np.isnan(own).all()


def test_what_is_sent_is_the_value_at_the_time_of_the_call() -> None:
    with Cluster(2) as cluster:
        cluster.run(changed_at_once)


def with_wrong_arguments() -> None:
    remote_code.begin()
    verbs: Any = dist
    array = np.ones(3)
    read_only = np.ones(3)
    read_only.flags.writeable = False
    wrong: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: verbs.all_reduce(tensor([1.0])),
            TypeError,
            r"Tensor; of a Tensor pass tensor\.data",
        ),
        (lambda: verbs.all_gather([1.0]), TypeError, "not list"),
        (lambda: verbs.send(1.0, 0), TypeError, "not float"),
        (lambda: verbs.all_reduce(np.ma.masked_array([1.0])), TypeError, "masked"),
        (lambda: dist.broadcast(np.array([None])), TypeError, "object"),
        (lambda: verbs.all_reduce(read_only), ValueError, "read-only"),
        (lambda: dist.broadcast(read_only), ValueError, "read-only"),
        (lambda: verbs.recv(read_only, 1), ValueError, "read-only"),
        (lambda: verbs.all_reduce(array, "sum"), TypeError, "ReduceOp"),
        (lambda: verbs.all_reduce(np.ones(3, int), ReduceOp.AVG), ValueError, "AVG of int64"),
        (lambda: dist.broadcast(array, 2), ValueError, r"src 2 is no member.*\[0, 1\]"),
        (lambda: dist.broadcast(array, True), TypeError, "True"),
        (lambda: verbs.send(array, dist.get_rank()), ValueError, "is this one"),
        (lambda: verbs.send(array, 1 - dist.get_rank(), tag=-1), ValueError, "-1"),
        (lambda: verbs.recv(array, 1 - dist.get_rank(), tag="a"), TypeError, "tag"),
        (lambda: verbs.all_reduce(array, ReduceOp.PREMUL_SUM(1j)), ValueError, "complex"),
        (
            lambda: verbs.all_reduce(array, ReduceOp.PREMUL_SUM(np.ones(2))),
            ValueError,
            r"factor of shape \(2,\) does not fit an array of shape \(3,\)",
        ),
        (lambda: verbs.all_reduce(array, ReduceOp.BOR), ValueError, "bits of integers"),
        (lambda: verbs.reduce(read_only, dist.get_rank()), ValueError, "read-only"),
        (lambda: verbs.reduce(array, 2), ValueError, "dst 2 is no member"),
        (lambda: verbs.reduce(np.array(["a"])), TypeError, "numbers"),
        (lambda: verbs.gather(array, -1), ValueError, "dst -1 is no member"),
        (lambda: verbs.scatter(read_only), ValueError, "read-only"),
        (lambda: verbs.scatter(array, None, dist.get_rank()), TypeError, "not NoneType"),
        (lambda: verbs.scatter(array, [array], dist.get_rank()), ValueError, "got 1"),
        (
            lambda: verbs.scatter(array, [array, array], 1 - dist.get_rank()),
            ValueError,
            "the source, alone; pass None here",
        ),
        (
            lambda: verbs.scatter(array, [np.ones(2)] * 2, dist.get_rank()),
            ValueError,
            r"own part has shape \(2,\)",
        ),
        (lambda: verbs.reduce_scatter(np.ones((2, 3))), TypeError, "list of arrays.*not ndarray"),
        (lambda: verbs.reduce_scatter([array] * 3), ValueError, "each of the 2 ranks.*got 3"),
        (lambda: verbs.reduce_scatter([array, np.ones(3, int)]), ValueError, "float64 and int64"),
        (lambda: verbs.reduce_scatter([array, 1.0]), TypeError, "not float"),
        (lambda: verbs.reduce_scatter_single(array), ValueError, "state split_sizes"),
        (lambda: verbs.reduce_scatter_single(np.array(1.0)), ValueError, "without axes"),
        (
            lambda: verbs.reduce_scatter_single(array, split_sizes=[1, 1]),
            ValueError,
            r"split_sizes \[1, 1\] must add up to 3",
        ),
        (lambda: verbs.all_to_all([tensor([1.0])] * 2), TypeError, r"tensor\.data"),
        (lambda: verbs.all_to_all_single(array), ValueError, "state input_split_sizes"),
        (
            lambda: verbs.all_to_all_single(array, [1], [1, 2]),
            ValueError,
            r"output_split_sizes.*2 ranks \(got \[1\]\)",
        ),
        (lambda: verbs.all_to_all_single(array, None, [4, -1]), ValueError, "from 0"),
        (lambda: verbs.all_to_all_single(array, None, [1.5, 1.5]), TypeError, "integer"),
        (lambda: dist.barrier(timeout=0), ValueError, "above 0"),
        (lambda: verbs.all_reduce(array, group=[0, 1]), TypeError, "ProcessGroup"),
        (lambda: verbs.all_reduce(array, label=5), TypeError, "label must be a str, not 5"),
        (lambda: verbs.new_group([]), ValueError, "at least one"),
        (lambda: verbs.new_group([0, 0]), ValueError, "once"),
        (lambda: verbs.new_group([0, 5]), ValueError, r"\[5\] are not in this job"),
        (lambda: verbs.new_group(["worker0"]), TypeError, "worker0"),
        (lambda: verbs.new_group(2), TypeError, "list of ranks"),
        (lambda: verbs.new_group([0, 1], timeout=-1), ValueError, "above 0"),
    ]
    for call, error, words in wrong:
        with pytest.raises(error, match=words):
            call()
    dist.all_reduce(array)  # nothing of all that was sent
    assert array.tolist() == [2.0] * 3


def test_wrong_arguments() -> None:
    with Cluster(2) as cluster:
        cluster.run(with_wrong_arguments)


def weighted() -> list[Any]:
    """Each rank has a factor of its own; the arrays that are only read keep their values."""
    r = remote_code.begin()
    of_rank = ReduceOp.PREMUL_SUM(r + 1)
    counts = np.array([1, 10], np.int32)
    dist.all_reduce(counts, of_rank)
    rows = ReduceOp.PREMUL_SUM(np.array([[1.0], [0.5]]))
    array = np.ones((2, 2), np.float32).T
    dist.reduce(array, 0, rows)
    own = np.full(3, 2.0)
    parts = [
        dist.reduce_scatter_single(own, of_rank),
        dist.reduce_scatter([own, own, own], of_rank),
    ]
    assert (own == 2.0).all()
    return [counts.tolist(), array.tolist(), *(part.tolist() for part in parts)]


def test_factors(cluster: Cluster) -> None:
    ones = [[1.0, 1.0], [1.0, 1.0]]
    for r, found in enumerate(cluster.run(weighted)):
        reduced = ones if r else [[3.0, 3.0], [1.5, 1.5]]
        assert found == [[6, 60], reduced, [12.0], [12.0] * 3]


# -- what is counted and shown -----------------------------------------------------------------


def counted() -> tuple[Any, ...]:
    remote_code.begin()
    group = dist.world_group()
    seen = []
    for size in (100, 240_000):
        before = group.statistics()
        dist.all_reduce(np.ones(size))
        after = group.statistics()
        seen.append(
            (
                after.messages_sent - before.messages_sent,
                after.bytes_sent - before.bytes_sent,
                after.operations,
            )
        )
    work = dist.all_reduce(np.ones(3), async_op=True, label="step 3")
    work.wait()
    chained = dist.all_gather(np.ones(3), async_op=True).then(lambda done: len(done.value()))
    dist.barrier()
    return (*seen, repr(work), repr(group), chained.wait(), group.statistics().in_flight)


@pytest.mark.usefixtures("_nobody_tells_that_it_waits")
def test_what_is_counted_and_shown() -> None:
    with Cluster(3) as cluster:
        for r, (small, large, work, group, chained, in_flight) in enumerate(cluster.run(counted)):
            assert small == (2, 2 * 800, 1)
            # 4 blocks of 640,000 bytes; `entered` to one neighbour and `ready` to the other before
            assert large == (6, 4 * 640_000, 2)
            assert work.startswith(
                "<Work all_reduce(op=SUM, dtype=float64, shape=(3,)) for 'step 3'"
            )
            assert f"of group 'world' on rank {r} ('worker{r}'): done, started " in work
            assert group == f"<ProcessGroup 'world' (rank {r} of 3, 5 operations)>"
            assert (chained, in_flight) == (3, 0)
