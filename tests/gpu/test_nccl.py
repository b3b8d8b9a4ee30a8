"""Collectives that leave arrays on the GPUs, by NCCL.

A machine with one GPU runs them with one rank. The stand-in has a GPU for each rank.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.arrays import Communicator, can_reduce
from telegrad.collectives import ReduceOp, reduction
from telegrad.errors import CollectiveMismatchError
from telegrad.testing import Cluster
from tests.array_libraries import CUPY_PLACES
from tests.collectives.fake_link import arrays_for
from tests.collectives.test_algorithms import CASES, expected
from tests.gpu import stand_in_nccl
from tests.gpu.comparison import host, on_gpu
from tests.gpu.stand_in import stand_in

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


@pytest.fixture(params=CUPY_PLACES)
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    if request.param == "gpu":
        xp, n = request.getfixturevalue("gpu"), 1
    else:
        xp, n = stand_in(N), N
        monkeypatch.setitem(sys.modules, "cupy", xp)
    with Cluster(n) as cluster:
        yield Gpus(cluster, xp, n)
    stand_in_nccl.release()


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """As `gpus`, on the stand-in alone: what one rank cannot show."""
    xp = stand_in(N)
    monkeypatch.setitem(sys.modules, "cupy", xp)
    with Cluster(N) as cluster:
        yield Gpus(cluster, xp, N)
    stand_in_nccl.release()


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
@pytest.mark.parametrize(("op", "dtype"), REDUCED)
def test_reductions(gpus: Gpus, op: ReduceOp, dtype: str) -> None:
    if dtype == "bfloat16" and "stand_in" not in str(gpus.xp.__file__):
        pytest.skip("CuPy's arrays of bfloat16 are an option")
    for size in (0, 1, 2 * gpus.n, 2 * gpus.n + 1):
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
    scaled = xp.full((2,), 1.0)
    dist.all_reduce(scaled, ReduceOp.PREMUL_SUM(r + 1.0))
    same([scaled], [np.full(2, n * (n + 1) / 2)])
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


# -- the contracts of NCCL, and its failures; on the stand-in ------------------------------------


def differently(xp: Any) -> str:
    r = dist.get_rank()
    array = xp.full((2,), 1.0)
    try:
        if r == 1:
            dist.all_reduce(array, ReduceOp.MAX)
        else:
            dist.all_reduce(array)
    except CollectiveMismatchError as error:
        return str(error)
    return "nothing"


def test_ranks_that_call_different_operations_never_enter_nccl(standing_in: Gpus) -> None:
    for said in standing_in.run(differently):
        assert "called all_reduce(op=SUM" in said
        assert "called all_reduce(op=MAX" in said


def unlike_parts(xp: Any) -> str:
    r = dist.get_rank()
    try:
        parts = [xp.zeros((2,))] * N if r == 0 else None
        dist.scatter(xp.zeros((2 if r < 2 else 3,)), parts)
    except CollectiveMismatchError as error:
        return str(error)
    return "nothing"


def test_parts_that_do_not_fit(standing_in: Gpus) -> None:
    for said in standing_in.run(unlike_parts):
        assert "called scatter(" in said
        assert "shape=(3,)" in said


FAILING: dict[int, Callable[[], None]] = {}  # by thread


def one_fails(xp: Any) -> str:
    r = dist.get_rank()
    group = dist.world_group()
    array = xp.full((2,), 1.0)
    dist.all_reduce(array)
    if r == 1:  # after all have agreed, and before its kernel is there
        raised = MemoryError("no memory is left on this GPU")

        def fails() -> None:
            raise raised

        FAILING[threading.get_ident()] = fails
    try:
        dist.all_reduce(array)
        xp.cuda.get_current_stream().synchronize()  # the kernel that waits for rank 1 is ended
        dist.barrier(group)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_kernel_that_waits_for_a_rank_is_aborted(
    standing_in: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Communicator.all_reduce

    def all_reduce(self: Communicator, flat: Any, operation: str) -> None:
        fails = FAILING.pop(threading.get_ident(), None)
        if fails is not None:
            fails()
        real(self, flat, operation)

    monkeypatch.setattr(Communicator, "all_reduce", all_reduce)
    for said in standing_in.run(one_fails):
        assert "MemoryError" in said
        assert "no memory is left on this GPU" in said
