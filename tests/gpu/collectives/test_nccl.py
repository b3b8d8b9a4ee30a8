"""Collectives that leave arrays on the GPUs, by NCCL.

A machine with one GPU runs them with one rank. The stand-in has a GPU for each rank.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad import nn, optim
from telegrad.arrays import Communicator, can_reduce, has_nccl
from telegrad.collectives import ReduceOp, reduction
from telegrad.collectives.link import EAGER_BYTES
from telegrad.parallel import (
    CommHook,
    DistributedDataParallel,
    ErrorFeedback,
    GradientBucket,
    int8_compress_hook,
    top_k_compress_hook,
)
from telegrad.testing import Cluster
from tests.array_libraries import CUPY_PLACES
from tests.collectives.algorithms.test_algorithms import CASES, expected
from tests.collectives.fake_link import arrays_for
from tests.collectives.remote_code import refusal
from tests.gpu.comparison import host, on_gpu
from tests.gpu.sharing import wait_until
from tests.gpu.stand_in import stand_in_nccl
from tests.gpu.stand_in.stand_in import stand_in
from tests.gpu.stand_in.stand_in_streams import watched

N = 3
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (7, 3)]
# What NCCL reduces, of the cases that all algorithms are tested with.
REDUCED = [(op, dtype) for op, dtype in CASES if can_reduce(op.value, np.dtype(dtype))]


class Gpus:
    """A job whose ranks have a GPU each: threads of this process, or one rank on a real GPU."""

    def __init__(self, cluster: Cluster, xp: Any, n: int) -> None:
        self.cluster = cluster
        self.xp = xp
        self.n = n

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Runs a function on all ranks, in a group by NCCL, with its GPU as the current one."""
        return self.cluster.run(_on_a_gpu, self.xp, function, *args)


def _on_a_gpu(xp: Any, function: Callable[..., Any], *args: Any) -> Any:
    group = dist.init_process_group(backend="nccl")
    with xp.cuda.Device(group.rank):
        try:
            return function(xp, *args)
        finally:
            dist.destroy_process_group()


def real_gpu(request: pytest.FixtureRequest) -> Any:
    xp = request.getfixturevalue("gpu")
    if not has_nccl():
        pytest.skip("CuPy finds no NCCL here: pip install nvidia-nccl-cu13")
    return xp


def standing_in_for(gpus: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what stands in for CuPy and its NCCL, on a machine of so many GPUs."""
    xp = stand_in(gpus)
    monkeypatch.setitem(sys.modules, "cupy", xp)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", stand_in_nccl.nccl)
    return xp


@pytest.fixture(params=CUPY_PLACES)
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    if request.param == "gpu":
        xp, n = real_gpu(request), 1
    else:
        xp, n = standing_in_for(N, monkeypatch), N
    with Cluster(n) as cluster:
        yield Gpus(cluster, xp, n)
    stand_in_nccl.release()


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """As `gpus`, on the stand-in alone: what one rank cannot show."""
    xp = standing_in_for(N, monkeypatch)
    with Cluster(N) as cluster:
        yield Gpus(cluster, xp, N)
    stand_in_nccl.release()


@pytest.fixture(autouse=True)
def no_races() -> Iterator[None]:
    """Fails what reads or frees memory that another stream may still use; on the stand-in."""
    with watched() as watch:
        yield
    assert watch.races == []


@pytest.fixture
def not_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails what copies an array of the GPU to the host for an operation."""

    def to_host(array: Any) -> Any:
        assert not on_gpu(array), "an array went by the host"
        return array

    monkeypatch.setattr(reduction, "to_host", to_host)


def values(r: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return (4 * np.random.default_rng(r).normal(size=shape)).astype(dtype)


# -- every operation, against NumPy --------------------------------------------------------------


def strided(xp: Any, array: Any) -> Any:
    """Returns an equal array that is not contiguous."""
    doubled = xp.zeros((*array.shape, 2), array.dtype)
    doubled[..., 1] = xp.asarray(array)
    return doubled[..., 1]


def reductions(xp: Any, op: ReduceOp, dtype: str, size: int) -> list[Any]:
    n, r = dist.get_world_size(), dist.get_rank()
    mine = arrays_for(n, size, dtype, 3)
    total = expected(op, [each.copy() for each in mine])
    found = []
    for make in (xp.asarray, lambda array: strided(xp, array)):
        array = make(mine[r])
        dist.all_reduce(array, op)
        assert on_gpu(array)
        near(array, total)
        found.append(host(array))
        array = make(mine[r])
        dist.reduce(array, n - 1, op)
        near(array, total if r == n - 1 else mine[r])
        part = dist.reduce_scatter([make(each) for each in np.array_split(mine[r], n)], op)
        near(part, np.array_split(total, n)[r])
        sizes = [len(each) for each in np.array_split(mine[r], n)]
        near(dist.reduce_scatter_single(make(mine[r]), op, split_sizes=sizes), host(part))
    return found


def near(found: Any, wanted: Any) -> None:
    assert on_gpu(found)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    a, b = host(found).astype(complex), wanted.astype(complex)
    np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-3)


@pytest.mark.usefixtures("not_by_the_host")
@pytest.mark.parametrize("op", dict(REDUCED))
@pytest.mark.few(2)
def test_reductions(gpus: Gpus, op: ReduceOp) -> None:
    dtypes = [dtype for each, dtype in REDUCED if each is op]
    for dtype, size in product(dtypes, (0, 1, 2 * gpus.n, 2 * gpus.n + 1)):
        first, *others = gpus.run(reductions, op, dtype, size)
        for other in others:
            for a, b in zip(first, other, strict=True):
                assert a.tobytes() == b.tobytes()  # the same bits on all ranks


def exchanges(xp: Any, dtype: Any, shape: tuple[int, ...], at_root: int) -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    root = at_root % n
    for make in (xp.asarray, lambda array: strided(xp, array)):
        mine = make(values(r, shape, dtype))
        all_of = [values(i, shape, dtype) for i in range(n)]
        same(dist.all_gather(mine), all_of)
        same([dist.all_gather_single(mine)], [np.concatenate([np.atleast_1d(x) for x in all_of])])
        gathered = dist.gather(mine, root)
        assert (gathered is None) == (r != root)
        same(gathered or [], all_of if r == root else [])
        target = make(values(9, shape, dtype))
        dist.broadcast(target if r != root else mine, root)
        same([target if r != root else mine], [all_of[root]])
        target = make(values(9, shape, dtype))
        dist.scatter(target, [make(x) for x in all_of] if r == root else None, root)
        same([target], [all_of[r]])
        parts = [make(values(10 * r + i, shape, dtype)) for i in range(n)]
        same(dist.all_to_all(parts), [values(10 * i + r, shape, dtype) for i in range(n)])


def same(found: Any, wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert on_gpu(a)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(host(a), b)


@pytest.mark.usefixtures("not_by_the_host")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "int16", "complex128", "bool"])
@pytest.mark.few(1)
def test_exchanges(gpus: Gpus, dtype: str, shape: tuple[int, ...]) -> None:
    for root in range(gpus.n):
        gpus.run(exchanges, dtype, shape, root)


def of_several_sizes(xp: Any) -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    mine = xp.asarray(values(r, (r, 2)))
    all_of = [values(i, (i, 2)) for i in range(n)]
    same(dist.all_gather(mine), all_of)
    same([dist.all_gather_single(mine)], [np.concatenate(all_of)])
    same(dist.gather(mine, 0) or [], all_of if r == 0 else [])
    target = xp.zeros((r, 2), np.float32)
    dist.scatter(target, [xp.asarray(each) for each in all_of] if r == 0 else None)
    same([target], [all_of[r]])
    parts = [xp.asarray(values(r + i, (r + i,))) for i in range(n)]
    same(dist.all_to_all(parts), [values(r + i, (r + i,)) for i in range(n)])
    rows = values(r, (n * (n - 1) // 2, 2))
    found = dist.all_to_all_single(xp.asarray(rows), input_split_sizes=list(range(n)))
    start = r * (r - 1) // 2
    cut = [values(i, rows.shape)[start : start + r] for i in range(n)]
    same([found], [np.concatenate(cut)])


@pytest.mark.usefixtures("not_by_the_host")
def test_arrays_of_several_sizes(gpus: Gpus) -> None:
    gpus.run(of_several_sizes)


def all_in_one(xp: Any) -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    a, b = xp.asarray(values(r, (4,))), xp.asarray(values(r, (2, 3)))
    with dist.coalesced(async_op=True) as block:
        dist.all_reduce(a)
        dist.broadcast(b, n - 1)
        rows = dist.all_gather_single(xp.full((r + 1,), float(r)), async_op=True)
        part = dist.reduce_scatter_single(xp.full((n,), 2.0), async_op=True)
    block.work.wait()
    near(a, sum(values(i, (4,)) for i in range(n)))
    same([b], [values(n - 1, (2, 3))])
    same([rows.wait()], [np.concatenate([np.full(i + 1, float(i)) for i in range(n)])])
    same([part.wait()], [np.full(1, 2.0 * n)])


@pytest.mark.usefixtures("not_by_the_host")
def test_a_block_of_operations(gpus: Gpus) -> None:
    gpus.run(all_in_one)


def factors(xp: Any, dtype: Any) -> None:
    """Factors are numbers and arrays, other ones at each rank."""
    n, r = dist.get_world_size(), dist.get_rank()
    all_of = np.stack([values(i, (4 * n, 3), dtype) for i in range(n)])
    column = np.arange(4 * n)[:, None]
    for make in (xp.asarray, lambda array: strided(xp, array)):
        for factor in (2, column):
            total: Any = sum(each * (factor + i) for i, each in enumerate(all_of))
            op = ReduceOp.PREMUL_SUM(factor + r)
            array, mine = make(all_of[r]), make(all_of[r])
            dist.all_reduce(array, op)
            near(array, total.astype(dtype))
            dist.reduce(mine, n - 1, op)
            near(mine, (total if r == n - 1 else all_of[r]).astype(dtype))
            part = dist.reduce_scatter_single(make(all_of[r]), op)
            near(part, total[4 * r : 4 * r + 4].astype(dtype))
            sizes = [1] * (n - 1) + [3 * n + 1]
            part = dist.reduce_scatter_single(make(all_of[r]), op, split_sizes=sizes)
            near(part, total[r : r + sizes[r]].astype(dtype))
        twice = ReduceOp.PREMUL_SUM(2)
        part = dist.reduce_scatter([make(each) for each in np.split(all_of[r], n)], twice)
        near(part, 2 * all_of.sum(0)[4 * r : 4 * r + 4])
        with dist.coalesced():
            dist.all_reduce(array := make(all_of[r]), twice)
            dist.all_reduce(other := make(all_of[r]))
        near(array, 2 * all_of.sum(0))
        near(other, all_of.sum(0))


@pytest.mark.few(1)
@pytest.mark.usefixtures("not_by_the_host")
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.complex64])
def test_sums_of_products(gpus: Gpus, dtype: Any) -> None:
    gpus.run(factors, dtype)


def in_groups(xp: Any) -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    mine, _ = dist.new_subgroups(1)
    alone = xp.full((3,), r + 1.0)
    dist.all_reduce(alone, group=mine)
    same([alone], [np.full(3, r + 1.0)])
    backwards = dist.new_group(list(reversed(range(n))))
    gathered = dist.all_gather(xp.full((1,), float(r)), group=backwards)
    same(gathered, [np.full(1, float(i)) for i in reversed(range(n))])
    by_host = dist.new_group(list(range(n)), backend="host")
    array = xp.full((3,), 1.0)
    dist.all_reduce(array, group=by_host)
    same([array], [np.full(3, float(n))])


def test_each_group_has_connections_of_its_own(gpus: Gpus) -> None:
    gpus.run(in_groups)
    assert stand_in_nccl.connected() == 0


def other_kinds(xp: Any) -> None:
    """What NCCL has no operation for goes by the host, and so do arrays that are there."""
    n, r = dist.get_world_size(), dist.get_rank()
    bits = xp.asarray(np.array([1 << r, 7]))
    dist.all_reduce(bits, ReduceOp.BOR)
    same([bits], [np.array([(1 << n) - 1, 7])])
    short = xp.asarray(np.full(2, r + 1, np.int16))
    dist.all_reduce(short)
    same([short], [np.full(2, n * (n + 1) // 2, np.int16)])
    there = np.full(2, 1.0)
    dist.all_reduce(there)
    assert there.tolist() == [n, n]
    mixed = xp.full((2,), 1.0) if r == 0 else np.full(2, 1.0)
    dist.all_reduce(mixed)
    np.testing.assert_array_equal(host(mixed), np.full(2, float(n)))
    if n > 1 and r == 0:
        dist.send(xp.full((2,), 5.0), 1)
    elif r == 1:
        got = xp.zeros((2,))
        dist.recv(got, 0)
        same([got], [np.full(2, 5.0)])
    dist.barrier()
    assert dist.all_gather(np.array([r]))[-1].tolist() == [n - 1]


def test_what_goes_by_the_host(gpus: Gpus) -> None:
    gpus.run(other_kinds)


# -- messages of two ranks -----------------------------------------------------------------------

LARGE = (EAGER_BYTES // 8 + 5, 1)  # float64; smaller arrays leave at once, by the host


def passed_round(xp: Any, batched: bool) -> None:
    """Sends arrays to the right and to the left at once, with several tags, in any order."""
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    going = [strided(xp, values(10 * r + tag, LARGE, np.float64)) for tag in range(4)]
    coming = [strided(xp, np.zeros(LARGE)) for _ in range(4)]
    to, source = (right, right, left, left), (left, left, right, right)
    sends = [dist.P2POp(dist.isend, going[i], to[i], tag=i) for i in range(4)]
    recvs = [dist.P2POp(dist.irecv, coming[i], source[i], tag=i) for i in range(4)]
    ops = [*sends, *recvs[::-1]] if r % 2 else [*recvs, *sends[::-1]]
    if batched:
        works = dist.batch_isend_irecv(ops)
    else:
        works = [each.op(each.array, each.peer, tag=each.tag) for each in ops]
    for work in works:
        work.wait()
    same(coming, [values(10 * source[i] + i, LARGE, np.float64) for i in range(4)])
    for work in works:
        work.then(lambda done: done.value()).wait()


@pytest.mark.usefixtures("not_by_the_host")
@pytest.mark.parametrize("batched", [False, True])
def test_messages_in_both_directions(standing_in: Gpus, batched: bool) -> None:
    standing_in.run(passed_round, batched)
    assert stand_in_nccl.connected() == 0


def one_after_the_other(xp: Any) -> None:
    """Blocking messages down a chain, from a named rank and from any; computed upon at once."""
    n, r = dist.get_world_size(), dist.get_rank()
    for src in (r - 1, None):
        array = xp.full(LARGE, 1.0)
        if r > 0:
            assert dist.recv(array, src) == r - 1
            array += 1.0
        if r < n - 1:
            dist.send(array, r + 1)
            array[...] = -1.0  # after it was sent
        else:
            same([array], [np.full(LARGE, float(n))])
        total = xp.full((2,), 1.0)
        dist.all_reduce(total)
        same([total], [np.full(2, float(n))])


@pytest.mark.usefixtures("not_by_the_host")
def test_messages_one_after_the_other(standing_in: Gpus) -> None:
    standing_in.run(one_after_the_other)


def on_one_end_alone(xp: Any) -> None:
    """Arrays that are on the host at one end go by the host; those beside them need not."""
    r = dist.get_rank()
    if r == 0:
        dist.send(np.full(LARGE, 2.0), 1)
        dist.send(xp.full(LARGE, 3.0), 1)
        dist.send(xp.full(LARGE, 4.0), 1)
    elif r == 1:
        there, here, both = xp.zeros(LARGE), np.zeros(LARGE), xp.zeros(LARGE)
        for array in (there, here, both):
            dist.recv(array, 0)
        same([there, both], [np.full(LARGE, 2.0), np.full(LARGE, 4.0)])
        assert (here == 3.0).all()


def test_messages_between_a_gpu_and_a_host(standing_in: Gpus) -> None:
    standing_in.run(on_one_end_alone)


MESSAGE = st.tuples(st.integers(0, N - 1), st.integers(1, N - 1), st.integers(0, 2))


def at_random(xp: Any, messages: list[tuple[int, int, int]], seeds: list[int]) -> None:
    """Starts all messages of this rank, in an order of its own that keeps that of each tag."""
    n, r = dist.get_world_size(), dist.get_rank()
    started: list[tuple[int, Any]] = []
    works, found = [], []
    mine = [(i, src, (src + far) % n, tag) for i, (src, far, tag) in enumerate(messages)]
    lanes: dict[Any, list[Any]] = {}
    for each in mine:
        if r in each[1:3]:
            lanes.setdefault(each[1:], []).append(each)
    rng = np.random.default_rng(seeds[r])
    while any(lanes.values()):
        lane = lanes[list(lanes)[rng.integers(len(lanes))]]
        if not lane:
            continue
        i, src, to, tag = lane.pop(0)
        array = xp.full(LARGE, float(i) if src == r else -1.0)
        works.append(
            dist.isend(array, to, tag=tag) if src == r else dist.irecv(array, src, tag=tag)
        )
        started.append((i, array))
        found.append(src != r)
    for work in works:
        work.wait()
    for (i, array), received in zip(started, found, strict=True):
        assert not received or (array == float(i)).all()
    dist.barrier()


@pytest.mark.long
@pytest.mark.usefixtures("not_by_the_host")
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(MESSAGE, max_size=12),
    st.lists(st.integers(0, 9), min_size=N, max_size=N),
)
def test_any_messages_in_any_order(
    standing_in: Gpus, messages: list[tuple[int, int, int]], seeds: list[int]
) -> None:
    standing_in.run(at_random, messages, seeds)


def one_message_fails(xp: Any, fault: Fault) -> list[str]:
    """Rank 1 has no memory when both have agreed; the messages of ranks 0 and 1 are over."""
    r, array = dist.get_rank(), xp.full(LARGE, 1.0)
    found = []
    if r == 0:
        work = dist.isend(array, 1)
        found = [refusal(lambda: done(work)), refusal(lambda: dist.send(array, 1))]
        xp.cuda.get_current_stream().synchronize()  # the kernel that waits for rank 1 is ended
    elif r == 1:
        fault.at(1, no_memory)
        found = [refusal(lambda: dist.recv(array, 0)), refusal(lambda: dist.recv(array, 0))]
    total = xp.full((2,), 1.0)
    dist.all_reduce(total)  # the group goes on
    same([total], [np.full(2, float(N))])
    if r == 0:
        dist.send(array, 2)
    elif r == 2:
        dist.recv(array, 0)
        same([array], [np.full(LARGE, 1.0)])
    return found


def test_a_message_that_fails_ends_those_of_its_ranks(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in standing_in.run(one_message_fails, Fault(monkeypatch, "exchange")):
        for each in said:
            assert "MemoryError" in each
            assert "no memory is left on this GPU" in each


def late_message(xp: Any, fault: Fault) -> list[str]:
    """The kernel of rank 1 is never there: the deadline ends that of rank 0."""
    r, array = dist.get_rank(), xp.full(LARGE, 1.0)
    found = []
    if r == 0:
        work = dist.isend(array, 1, timeout=1.0)
        found = [refusal(lambda: done(work))]
    elif r == 1:
        fault.at(1, lambda: None)
        dist.recv(array, 0)
    dist.barrier()
    return found


def test_a_message_that_is_not_run_in_time(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    (said,), _, _ = standing_in.run(late_message, Fault(monkeypatch, "exchange"))
    assert is_overdue(said)


class Death:
    """The moment at which a rank is killed: before its kernel is there, and without a goodbye.

    Args:
        threads: How many wait for it, the test's among them.
    """

    def __init__(self, threads: int) -> None:
        self.ready = threading.Barrier(threads)
        self._killed = threading.Event()

    def awaited(self) -> None:
        """Holds the rank until it is dead; it would leave the group otherwise."""
        self.ready.wait()
        assert self._killed.wait(30)

    def of(self, cluster: Cluster, rank: int) -> None:
        """Kills the rank, in the test."""
        self.ready.wait()
        cluster.kill(rank)
        self._killed.set()


def loses_a_rank(
    gpus: Gpus, function: Callable[..., list[str]], death: Death, fault: Fault
) -> None:
    """Runs a function on all ranks, while rank 1 dies; the others hear of that alone."""
    with ThreadPoolExecutor(N) as pool:
        ranks = [
            pool.submit(partial(gpus.cluster.call, r, _on_a_gpu, gpus.xp, function, death, fault))
            for r in range(N)
        ]
        death.of(gpus.cluster, 1)
        for r in (0, 2):
            for said in ranks[r].result():
                assert said.startswith("WorkerLostError: "), said
        ranks[1].exception()


def receiver_is_lost(xp: Any, death: Death, fault: Fault) -> list[str]:
    group, array = dist.world_group(), xp.full(LARGE, 1.0)
    if group.rank == 1:
        fault.at(1, death.awaited)
        return [refusal(lambda: dist.recv(array, 0))]
    found = []
    if group.rank == 0:
        work = dist.isend(array, 1)
        work.wait()
        death.ready.wait()
        xp.cuda.get_current_stream().synchronize()
        found = [refusal(lambda: done(work))]
    return [*found, refusal(dist.barrier)]


def test_a_receiver_that_is_lost_while_a_kernel_waits_for_it(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    loses_a_rank(standing_in, receiver_is_lost, Death(3), Fault(monkeypatch, "exchange"))


# -- streams -------------------------------------------------------------------------------------


def started(xp: Any) -> None:
    """Several at once, computed upon without a wait of the host."""
    n, r = dist.get_world_size(), dist.get_rank()
    arrays = [xp.full((1000,), float(r + i)) for i in range(8)]
    works = [dist.all_reduce(array, async_op=True) for array in arrays]
    for i, (array, work) in enumerate(zip(arrays, works, strict=True)):
        work.wait()
        wanted = n * i + n * (n - 1) / 2
        same([array + 1.0], [np.full(1000, wanted + 1.0)])
        assert work.then(lambda done: done.exception()).wait() is None
        assert work.done()


@pytest.mark.usefixtures("not_by_the_host")
def test_started_operations(gpus: Gpus) -> None:
    gpus.run(started)


def on_two_streams(xp: Any) -> None:
    n = dist.get_world_size()
    made, used = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
    for _ in range(20):
        with made:
            array = xp.full((100,), 1.0)
            array += 1.0
            work = dist.all_reduce(array, async_op=True)
        with used:
            work.wait()
            doubled = array * 2.0
            gathered = dist.all_gather_single(doubled)
            assert float(gathered.sum()) == 4.0 * n * n * 100
        made.synchronize()


@pytest.mark.usefixtures("not_by_the_host")
def test_the_stream_that_waits_may_be_another_one(gpus: Gpus) -> None:
    gpus.run(on_two_streams)


def messages_of_a_reduction(xp: Any) -> list[int]:
    """Returns the messages for a dtype that NCCL lacks, in a group by NCCL and in another one."""
    sent = []
    for group in (dist.world_group(), dist.new_group(range(N), backend="host")):
        array = xp.ones(2, np.int16)
        before = group.statistics().messages_sent
        dist.all_reduce(array, group=group)
        sent.append(group.statistics().messages_sent - before)
        assert host(array).tolist() == [N, N]
    return sent


def test_ranks_of_several_hosts_say_nothing_of_gpus_that_nccl_cannot_use(standing_in: Gpus) -> None:
    for by_nccl, by_host in standing_in.run(messages_of_a_reduction):
        assert by_nccl == by_host


# -- the contracts of NCCL, and its failures; on the stand-in ------------------------------------


def differently(xp: Any) -> str:
    r = dist.get_rank()
    array = xp.full((2,), 1.0)
    return refusal(lambda: dist.all_reduce(array, ReduceOp.MAX if r == 1 else ReduceOp.SUM))


def test_ranks_that_call_different_operations_never_enter_nccl(standing_in: Gpus) -> None:
    for said in standing_in.run(differently):
        assert said.startswith("CollectiveMismatchError: ")
        assert "called all_reduce(op=SUM" in said
        assert "called all_reduce(op=MAX" in said


def unlike_parts(xp: Any) -> str:
    r = dist.get_rank()
    parts = [xp.zeros((2,))] * N if r == 0 else None
    return refusal(lambda: dist.scatter(xp.zeros((2 if r < 2 else 3,)), parts))


def test_parts_that_do_not_fit(standing_in: Gpus) -> None:
    for said in standing_in.run(unlike_parts):
        assert said.startswith("CollectiveMismatchError: ")
        assert "called scatter(" in said
        assert "shape=(3,)" in said


class Fault:
    """Replaces a method of the communicators of one rank, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._real = getattr(Communicator, name)
        self._instead: dict[int, Callable[[], object]] = {}
        monkeypatch.setattr(Communicator, name, lambda *args: self._call(*args))

    def at(self, rank: int, instead: Callable[[], object]) -> None:
        """The next call of a rank is one of `instead`."""
        self._instead[rank] = instead

    def _call(self, communicator: Any, *args: Any) -> Any:
        instead = self._instead.pop(communicator._rank, None)
        return self._real(communicator, *args) if instead is None else instead()


def one_fails(xp: Any, fault: Fault) -> str:
    group, array = dist.world_group(), xp.full((2,), 1.0)
    dist.all_reduce(array)
    if group.rank == 1:  # after all have agreed, and before its kernel is there
        fault.at(1, no_memory)

    def works() -> None:
        dist.all_reduce(array)
        xp.cuda.get_current_stream().synchronize()  # the kernel that waits for rank 1 is ended
        dist.barrier(group)

    return refusal(works)


def no_memory() -> None:
    raise MemoryError("no memory is left on this GPU")


def test_a_kernel_that_waits_for_a_rank_is_aborted(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in standing_in.run(one_fails, Fault(monkeypatch, "all_reduce")):
        assert "MemoryError" in said
        assert "no memory is left on this GPU" in said


def late(xp: Any, fault: Fault) -> list[str]:
    group, array = dist.world_group(), xp.full((2,), 1.0)
    dist.all_reduce(array)
    if dist.get_rank() == 1:
        fault.at(1, lambda: None)
    work = dist.all_reduce(array, timeout=1.0, async_op=True)
    work.wait()  # it is enqueued
    wait_until("the end of the group", lambda: group.failed)
    xp.cuda.get_current_stream().synchronize()
    found = [refusal(lambda: dist.all_reduce(array)), refusal(dist.barrier)]
    # The kernel of rank 1 is the one that never was.
    return [*found, *(() if group.rank == 1 else [refusal(lambda: done(work))])]


def done(work: Any) -> None:
    """Raises the error of an operation that is over on the GPU."""
    work.then(lambda future: future.value()).wait()


def is_overdue(said: str) -> bool:
    words = "was entered by all ranks, and their GPUs have not run it in time"
    return said.startswith("CallTimeoutError: ") and words in said


def test_a_kernel_that_is_not_run_in_time(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in standing_in.run(late, Fault(monkeypatch, "all_reduce")):
        assert all(map(is_overdue, said)), said


def in_a_broken_network(xp: Any, fault: Fault) -> list[str]:
    group, array = dist.world_group(), xp.full((2,), 1.0)
    dist.all_reduce(array)
    if group.rank == 1:
        fault.at(1, lambda: stand_in_nccl.break_connections("a cable was cut"))
    work = dist.all_reduce(array, async_op=True)
    wait_until("the end of the group", lambda: group.failed)
    xp.cuda.get_current_stream().synchronize()
    return [refusal(dist.barrier), *([] if group.rank == 1 else [refusal(lambda: done(work))])]


def test_an_error_that_nccl_finds_while_it_runs(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in standing_in.run(in_a_broken_network, Fault(monkeypatch, "all_reduce")):
        for each in said:
            assert each.startswith("InvalidUseError: ")
            assert "NCCL has failed in all_reduce(" in each
            assert "a cable was cut" in each


def without_a_connection(xp: Any) -> str:
    return refusal(lambda: dist.all_reduce(xp.full((2,), 1.0), timeout=20.0))


def test_gpus_that_cannot_be_connected(standing_in: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank has an error, which ends the waits of the others in verbs; nothing ends NCCL's."""
    real = stand_in_nccl.nccl.NcclCommunicator

    def connect(size: int, unique_id: bytes, rank: int) -> Any:
        if rank == 1:
            raise stand_in_nccl.NcclError("NCCL_ERROR_SYSTEM_ERROR: no memory is shared")
        return real(size, unique_id, rank)

    monkeypatch.setattr(stand_in_nccl.nccl, "NcclCommunicator", connect)
    for said in standing_in.run(without_a_connection):
        assert said.startswith("InvalidUseError: NCCL has failed in all_reduce("), said
        assert "no memory is shared" in said
        assert "NCCL_DEBUG=INFO" in said


def is_lost(xp: Any, death: Death, fault: Fault) -> list[str]:
    group, array = dist.world_group(), xp.full((2,), 1.0)
    dist.all_reduce(array)
    if group.rank == 1:
        fault.at(1, death.awaited)
        return [refusal(lambda: dist.all_reduce(array))]
    work = dist.all_reduce(array, async_op=True)
    work.wait()
    death.ready.wait()
    xp.cuda.get_current_stream().synchronize()
    found = [refusal(lambda: done(work)), refusal(dist.barrier)]
    smaller = dist.shrink_group(group)
    array = xp.full((2,), float(group.rank))
    dist.all_reduce(array, group=smaller)
    same([array], [np.full(2, 2.0)])
    return found


def test_a_rank_that_is_lost_while_kernels_wait_for_it(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    loses_a_rank(standing_in, is_lost, Death(N + 1), Fault(monkeypatch, "all_reduce"))


def in_one_place(xp: Any, place: int) -> tuple[bool, bool]:
    n = dist.get_world_size()
    with xp.cuda.Device(place):
        array = xp.full((3,), 1.0)
        dist.all_reduce(array)
        rows = dist.all_gather_single(xp.full((1,), 2.0))
        assert on_gpu(array)
        assert on_gpu(rows)
        return host(array).tolist() == [n] * 3, host(rows).tolist() == [2.0] * n


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "GPU" in each.getMessage()]


@pytest.mark.parametrize("place", CUPY_PLACES)
def test_threads_that_share_a_gpu_go_by_the_host(
    place: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """CUDA opens no memory in the process that has made it (`test_one_gpu` has processes)."""
    xp = real_gpu(request) if place == "gpu" else standing_in_for(1, monkeypatch)
    caplog.set_level(logging.WARNING)
    with Cluster(2) as cluster:
        assert cluster.run(shared_gpu, xp) == [(True, True)] * 2
        wait_until("a warning of each rank", lambda: len(warned(caplog)) >= 2)
    assert len(warned(caplog)) == 2  # once on each
    for words in warned(caplog):
        assert (
            "group 'world': arrays on GPUs go through host memory, since rank 0 ('worker0') and "
            "rank 1 ('worker1') share one GPU, and memory of the GPU that another process shares "
            "cannot be opened"
        ) in words


def shared_gpu(xp: Any) -> tuple[bool, bool]:
    dist.init_process_group(backend="nccl")
    found = in_one_place(xp, 0)
    dist.destroy_process_group()
    return found


def test_a_rank_without_nccl(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stand_in_nccl.nccl, "available", False)
    caplog.set_level(logging.WARNING)
    assert standing_in.run(lambda xp: in_one_place(xp, dist.get_rank())) == [(True, True)] * N
    wait_until("a warning of each rank", lambda: len(warned(caplog)) >= N)
    assert len(warned(caplog)) == N
    assert "since rank 0 ('worker0') has no NCCL" in warned(caplog)[0]


def leaves_at_once(xp: Any) -> bool:
    group = dist.new_group(list(range(N)))
    array = xp.full((1000,), 1.0)
    for _ in range(10):
        dist.all_reduce(array, ReduceOp.AVG, group)
    dist.destroy_process_group(group)
    return bool((array == 1.0).all())


def test_a_group_that_is_left_runs_its_kernels(gpus: Gpus) -> None:
    if gpus.n == N:
        assert gpus.run(leaves_at_once) == [True] * N


# -- data-parallel training ----------------------------------------------------------------------


def trained(xp: Any, device: str = "") -> list[Any]:
    n, r = dist.get_world_size(), dist.get_rank()
    model = nn.Sequential(
        nn.Linear(6, 8, dtype=np.float64, rng=np.random.default_rng(r)),
        nn.Linear(8, 4, dtype=np.float64, rng=np.random.default_rng(r)),
    )
    model.to(device or f"cuda:{r}")
    parallel = DistributedDataParallel(model, bucket_bytes=400)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (parallel(xp.asarray(values(0, (12, 6), np.float64)[r::n])) ** 2).mean()
        loss.backward()
        optimizer.step()
    return [host(parameter) for parameter in model.parameters()]


def test_data_parallel_training(gpus: Gpus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            reduction, "copy_into", None
        )  # what writes into arrays of the GPU from the host
        ranks = gpus.run(trained)
    for found in ranks:
        trained_alike(found)


def trained_alike(found: list[Any]) -> None:
    """Compares parameters with those of one process without a GPU."""
    model = nn.Sequential(
        nn.Linear(6, 8, dtype=np.float64, rng=np.random.default_rng(0)),
        nn.Linear(8, 4, dtype=np.float64, rng=np.random.default_rng(0)),
    )
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(values(0, (12, 6), np.float64)) ** 2).mean().backward()
        optimizer.step()
    for a, b in zip(found, model.parameters(), strict=True):
        np.testing.assert_allclose(a, b.data, rtol=1e-10)


def compressed(xp: Any, hook: CommHook) -> Any:
    """Returns the average of a bucket that stays on the GPU."""
    group = dist.world_group()
    buffer = xp.asarray(values(group.rank, (1000,)))
    bucket = GradientBucket(0, buffer, (), True, group, "a bucket")
    found = hook(ErrorFeedback(), bucket).wait()
    assert found is buffer
    assert on_gpu(found)
    return host(found)


def on_the_host(hook: CommHook) -> Any:
    group = dist.init_process_group()
    bucket = GradientBucket(0, values(group.rank, (1000,)), (), True, group, "a bucket")
    return hook(ErrorFeedback(), bucket).wait()


@pytest.mark.usefixtures("not_by_the_host")
@pytest.mark.parametrize("hook", [int8_compress_hook, top_k_compress_hook])
def test_compressed_buckets(gpus: Gpus, hook: CommHook) -> None:
    with Cluster(gpus.n) as cluster:
        expected = cluster.run(on_the_host, hook)
    for found in gpus.run(compressed, hook):
        np.testing.assert_array_equal(found, expected[0])
