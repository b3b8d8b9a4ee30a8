"""Collectives of ranks on one GPU, by CUDA IPC: real processes, on a GPU or the stand-in."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import arrays, rpc
from telegrad import collectives as dist
from telegrad.collectives import ReduceOp
from telegrad.collectives.nccl import one_gpu
from telegrad.errors import WorkerLostError
from telegrad.launch import LocalWorkers
from telegrad.testing import Cluster
from tests.collectives.algorithms.test_algorithms import CASES, expected
from tests.collectives.fake_link import arrays_for
from tests.collectives.remote_code import refusal
from tests.gpu.collectives import test_nccl
from tests.gpu.comparison import host, on_gpu
from tests.gpu.sharing import OPTIONS, import_cupy_there, kill_this_process, shrinks, wait_until
from tests.gpu.stand_in import stand_in_memory
from tests.gpu.stand_in.stand_in_streams import Watch, watched

N = 3
# Of bytes: less makes a GPU share what lies beside it (`DeviceMemory`).
BLOCK_BYTES = 2**20
LONGER = BLOCK_BYTES // 4 + 12_345  # of float32: two blocks, and no round number
DTYPES = ("float32", "int16", "complex128", "bool")


@pytest.fixture
def cluster(workers_have_cupy: None) -> Iterator[Cluster]:
    with Cluster(N, processes=True) as cluster:
        yield cluster


# -- in a rank -----------------------------------------------------------------------------------


def on_one_gpu(function: Callable[..., Any], *args: Any) -> Any:
    """Runs a function with CuPy in a group by NCCL, whose ranks have small blocks on one GPU."""
    one_gpu.BLOCK_BYTES = BLOCK_BYTES
    xp: Any = importlib.import_module("cupy")
    group = dist.init_process_group(backend="nccl")
    try:
        with watched() as watch:
            found = function(xp, *args)
        assert not watch.races, watch.races
        return found
    finally:
        if not group.failed:
            dist.destroy_process_group()


@contextmanager
def no_copies(xp: Any) -> Iterator[Watch]:
    """Fails what copies more than a trial's bytes between the GPU and the host here.

    Yields what the stand-in notes of waits.
    """
    runtime, copied = xp.cuda.runtime, []
    copy = runtime.memcpyAsync

    def counted(target: int, source: int, size: int, kind: int, stream: int) -> None:
        copied.extend([size] if size > one_gpu.TOKEN_BYTES else [])
        copy(target, source, size, kind, stream)

    runtime.memcpyAsync = counted
    try:
        with watched() as watch:
            yield watch
    finally:
        runtime.memcpyAsync = copy
    assert copied == []
    assert set(watch.waits) <= {"synchronize"}  # and no `get` or `item`


def same_bits(found: list[list[Any]]) -> None:
    first, *others = found
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert a.tobytes() == b.tobytes()


# -- every operation, against NumPy --------------------------------------------------------------


def reduced(xp: Any, cases: list[tuple[str, str]]) -> list[Any]:
    found = []
    for name, dtype in cases:
        bits = test_nccl.reductions(xp, ReduceOp[name], dtype, 2 * N + 1)
        if (name, dtype[0]) != ("PRODUCT", "c"):  # NumPy's depend on the place in memory
            found += bits
    for size in (0, 1, LONGER):
        found += test_nccl.reductions(xp, ReduceOp.AVG, "float32", size)
    return found


def stands_in(xp: Any) -> bool:
    return "stand_in" in str(xp.__file__)


def test_reductions(cluster: Cluster) -> None:
    by_op = {op.name: (op.name, dtype) for op, dtype in CASES}  # the last dtype of each
    by_dtype = {dtype: (op.name, dtype) for op, dtype in CASES}
    same_bits(cluster.run(on_one_gpu, reduced, [*by_op.values(), *by_dtype.values()]))


@pytest.mark.long
def test_all_reductions(cluster: Cluster) -> None:
    same_bits(cluster.run(on_one_gpu, reduced, [(op.name, dtype) for op, dtype in CASES]))


def in_rank_order(xp: Any) -> None:
    """The bits are those of the host's: arrays are combined in the order of the ranks."""
    mine = arrays_for(N, LONGER, "float32", 5)
    array = xp.asarray(mine[dist.get_rank()])
    with no_copies(xp) as watch:
        dist.all_reduce(array)
    if stands_in(xp):  # two blocks, each shown before a meeting and read after it
        assert len(watch.waits) == 2 * 2, watch.waits
    assert host(array).tobytes() == expected(ReduceOp.SUM, mine).tobytes()


def every_exchange(xp: Any) -> None:
    for root, (dtype, shape) in enumerate(zip(DTYPES, test_nccl.SHAPES, strict=True)):
        test_nccl.exchanges(xp, dtype, shape, root)
    test_nccl.exchanges(xp, "float32", (LONGER, 1), 1)
    for function in (
        test_nccl.of_several_sizes,
        test_nccl.all_in_one,
        test_nccl.started,
        test_nccl.on_two_streams,
        test_nccl.in_groups,
        in_rank_order,
    ):
        function(xp)
    for number in (np.float32, np.int64, np.complex64):
        test_nccl.factors(xp, number)

    test_nccl.trained_alike(test_nccl.trained(xp, "cuda"))


@pytest.mark.long
def test_exchanges(cluster: Cluster) -> None:
    cluster.run(on_one_gpu, every_exchange)


def every_message(xp: Any) -> None:
    for batched in (False, True):
        test_nccl.passed_round(xp, batched)
    test_nccl.one_after_the_other(xp)
    test_nccl.on_one_end_alone(xp)


@pytest.mark.long
def test_messages(cluster: Cluster) -> None:
    cluster.run(on_one_gpu, every_message)


def on_each_gpu(xp: Any) -> None:
    r = dist.get_rank()
    for number in (0, 2, 0):  # all ranks on the first one, then on another
        with xp.cuda.Device(number):
            array = xp.full(LONGER, r + 1.0, np.float32)
            dist.all_reduce(array)
            assert arrays.device_of(array) == f"cuda:{number}"
            assert float(array.sum()) == 6.0 * LONGER
    with xp.cuda.Device(r // 2):  # two ranks on one GPU, the third on another
        array = xp.full(LONGER, r + 1.0, np.float32)
        dist.all_reduce(array)
        assert float(array.sum()) == 6.0 * LONGER


@pytest.mark.long
def test_another_gpu(three_gpus: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import_cupy_there(three_gpus, monkeypatch, tmp_path)
    with Cluster(N, processes=True) as cluster:
        cluster.run(on_one_gpu, on_each_gpu)


# -- nothing goes by the host --------------------------------------------------------------------


def all_on_the_gpu(xp: Any) -> None:
    r = dist.get_rank()
    with no_copies(xp):
        for shape in ((LONGER,), (7, 3)):
            array = xp.full(shape, r + 1.0, np.float32)  # `asarray` of NumPy's would be a copy
            dist.all_reduce(array)
            dist.reduce(array, 1, ReduceOp.MAX)
            dist.broadcast(array, 2)
            found = [
                *dist.all_gather(array),
                *(dist.gather(array, 0) or ()),
                *dist.all_to_all([array] * N),
                dist.all_gather_single(array),
                dist.reduce_scatter([array] * N, ReduceOp.AVG),
                dist.reduce_scatter_single(array, split_sizes=[len(array), *[0] * (N - 1)]),
                dist.all_to_all_single(array, input_split_sizes=[0, 0, len(array)]),
            ]
            dist.scatter(array, [array] * N if r == 0 else None)
            assert all(map(on_gpu, [array, *found]))
        array = xp.full(test_nccl.LARGE, float(r))
        sending, receiving = dist.isend(array, (r + 1) % N), dist.irecv(got := 2.0 * array)
        sending.wait()
        receiving.wait()
    assert float(got.sum()) == (r - 1) % N * array.size


@pytest.mark.long
def test_no_array_is_copied_to_the_host(cluster: Cluster) -> None:
    cluster.run(on_one_gpu, all_on_the_gpu)


# -- where memory cannot be shared ---------------------------------------------------------------


def by_the_host(xp: Any) -> list[str]:
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("telegrad.collectives").addHandler(Listener())
    for _ in range(3):
        array = xp.ones(LONGER, np.float32)
        dist.all_reduce(array)
        assert on_gpu(array)
        assert float(array.sum()) == N * LONGER
    with pytest.raises(AssertionError), no_copies(xp):
        dist.all_reduce(array)
    test_nccl.on_one_end_alone(xp)
    wait_until("a warning", lambda: bool(said))
    return said


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no-import", "cannot be opened (cudaErrorInvalidResourceHandle"),
        pytest.param(
            "no-export",
            "memory of the GPU cannot be shared (cudaErrorNotSupported",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "garbage", "other bytes are found in memory of the GPU", marks=pytest.mark.long
        ),
    ],
)
def test_what_cannot_be_shared_goes_by_the_host(
    kind: str, words: str, stand_in_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_IPC", kind)
    with Cluster(N, processes=True) as cluster:
        for said in cluster.run(on_one_gpu, by_the_host):
            first = said[0]
            assert "group 'world': arrays on GPUs go through host memory, since rank 0" in first
            assert "rank 2 ('worker2') share one GPU, and" in first
            assert words in first


# -- the ends ------------------------------------------------------------------------------------


def dies(xp: Any) -> list[str]:
    """Rank 1 dies when all have entered, and the others wait for the bytes that it would show."""
    group, array = dist.world_group(), xp.ones(LONGER, np.float32)
    dist.all_reduce(array)
    if group.rank == 1:
        arrays.DeviceMemory.array = kill_this_process  # type: ignore[method-assign, assignment]
    found = [refusal(lambda: dist.all_reduce(array)), refusal(dist.barrier)]
    others_closed()
    shrinks(xp, group, LONGER)
    return found


@pytest.mark.long
def test_a_rank_that_dies(cluster: Cluster) -> None:
    with ThreadPoolExecutor(N) as pool:
        ranks = [pool.submit(cluster.call, r, on_one_gpu, dies) for r in range(N)]
        for r in (0, 2):
            for said in ranks[r].result():
                assert said.startswith("WorkerLostError: "), said
                assert "worker1" in said
        with pytest.raises(WorkerLostError):
            ranks[1].result()


def broken(*args: object) -> None:
    raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")


def fails(xp: Any) -> list[str]:
    """The GPU fails at rank 1 when all have entered, and the others wait for it."""
    array = xp.ones(LONGER, np.float32)
    dist.all_reduce(array)
    if dist.get_rank() == 1:
        arrays.DeviceMemory.array = broken  # type: ignore[assignment,method-assign]
    return [refusal(lambda: dist.all_reduce(array)), refusal(dist.barrier)]


@pytest.mark.long
def test_a_gpu_that_fails_at_one_rank(cluster: Cluster) -> None:
    for found in cluster.run(on_one_gpu, fails):
        for said in found:
            assert "cudaErrorIllegalAddress" in said


def others_closed() -> None:
    wait_until("the memory of others is closed", lambda: not stand_in_memory.allocated()[1])


def left_early(xp: Any) -> None:
    """The others leave before rank 0 has read their memory, which it closes when it has."""
    array = xp.full(LONGER, dist.get_rank() + 1.0, np.float32)
    dist.all_reduce(array)
    first, opened = [True], arrays.Mappings.array

    def after_they_left(*args: Any) -> Any:
        if first:
            first.clear()
            others_closed()
        return opened(*args)

    if dist.get_rank() == 0:
        arrays.Mappings.array = after_they_left  # type: ignore[assignment]
    array = xp.full(1000, dist.get_rank() + 1.0, np.float32)
    dist.all_reduce(array)
    assert float(array.sum()) == 6000.0
    if dist.get_rank() == 0:
        others_closed()


@pytest.mark.long
def test_ranks_that_leave_before_another_has_read(cluster: Cluster) -> None:
    cluster.run(on_one_gpu, left_early)


def mismatched(xp: Any) -> str:
    array = xp.ones(LONGER, np.float32)
    dist.all_reduce(array)
    said = refusal(lambda: dist.broadcast(array, 0 if dist.get_rank() else 1))
    others_closed()
    return said


@pytest.mark.long
def test_a_mismatch_closes_the_memory_of_others(cluster: Cluster) -> None:
    for said in cluster.run(on_one_gpu, mismatched):
        assert said.startswith("CollectiveMismatchError: "), said


def in_a_job_of_two(xp: Any) -> float:
    dist.init_process_group(backend="nccl", world_size=2)
    array = xp.full(LONGER, dist.get_rank() + 1.0, np.float32)
    dist.all_reduce(array)
    dist.destroy_process_group()
    return float(array.sum())


def there() -> tuple[float, int]:
    found = in_a_job_of_two(importlib.import_module("cupy"))
    others_closed()
    return found, stand_in_memory.allocated()[0]


@pytest.mark.long
def test_nothing_is_left(stand_in_alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with rpc.init_rpc("me", options=OPTIONS), LocalWorkers(1) as workers:
        for _ in range(2):
            other = rpc.rpc_async(workers.names[0], there)
            assert in_a_job_of_two(stand_in_alone) == 3.0 * LONGER
            assert other.wait()[0] == 3.0 * LONGER
    assert stand_in_memory.allocated() == (0, 0)
