"""Collectives on arrays of the GPU, by way of host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.testing import Cluster
from tests.gpu.comparison import close, host, normal, on_gpu

N = 3
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (64, 33), (1 << 18,)]


def of_rank(r: int, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    return (4 * normal(r, *shape)).astype(dtype)


def in_place(xp: Any) -> list[Any]:
    dist.init_process_group()
    rank, found = dist.get_rank(), []
    for shape in SHAPES:
        for dtype in (np.float32, np.int64):
            array = xp.asarray(of_rank(rank, shape, dtype))
            dist.all_reduce(array)
            expected = sum(host(of_rank(r, shape, dtype)) for r in range(N))
            assert on_gpu(array)
            np.testing.assert_allclose(host(array), expected, rtol=1e-4, atol=1e-5)
            found.append(host(array))
    dist.destroy_process_group()
    return found


def test_all_reduce(cluster: Cluster, xp: Any) -> None:
    first, *others = cluster.run(in_place, xp)
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)  # bitwise, on all ranks


def the_other_verbs(xp: Any) -> None:
    dist.init_process_group()
    rank = dist.get_rank()
    array = xp.asarray(of_rank(rank, (4, 5)))
    dist.broadcast(array, src=1)
    close(array, of_rank(1, (4, 5)))
    gathered = dist.all_gather(xp.asarray(of_rank(rank, (rank, 2))))
    for r, each in enumerate(gathered):
        close(each, of_rank(r, (r, 2)))
    column = xp.asarray(of_rank(rank, (4, 5))).T[:, 1]  # not contiguous
    dist.all_reduce(column, dist.ReduceOp.MAX)
    close(column, np.max([of_rank(r, (4, 5))[1] for r in range(N)], axis=0))
    if rank == 0:
        dist.send(xp.full(3, 7.0), 1)
    elif rank == 1:
        received = xp.zeros(3)
        dist.recv(received, 0)
        close(received, np.full(3, 7.0))
    dist.barrier()
    dist.destroy_process_group()


def test_the_other_verbs(cluster: Cluster, xp: Any) -> None:
    cluster.run(the_other_verbs, xp)


def in_parts(xp: Any, size: int) -> None:
    dist.init_process_group()
    r = dist.get_rank()

    def full(value: float) -> Any:
        return xp.full(size, float(value))

    def last(found: Any) -> list[float]:
        assert all(map(on_gpu, found))
        return [float(host(each)[-1]) for each in found]

    reduced = full(r + 1)
    dist.reduce(reduced, 1)
    assert last([reduced]) == [6.0 if r == 1 else r + 1]
    part = full(0)
    dist.scatter(part, [full(5), full(6), full(7)] if r == 0 else None)
    assert last([part]) == [5.0 + r]
    gathered = dist.gather(full(r), 1)
    assert (gathered is None) == (r != 1)
    assert last(gathered or [full(i) for i in range(N)]) == [0.0, 1.0, 2.0]
    assert last(dist.all_to_all([full(10 * r + i) for i in range(N)])) == [r, 10.0 + r, 20.0 + r]
    twice = dist.ReduceOp.PREMUL_SUM(full(2))
    own = dist.reduce_scatter([full(1), full(2), full(3)], twice)
    assert last([own]) == [6.0 + 6 * r]
    singles: list[Any] = [
        dist.all_gather_single(full(r)),
        dist.reduce_scatter_single(full(1), split_sizes=[1, 1, size - 2]),
        dist.all_to_all_single(full(r), input_split_sizes=[size - 2, 1, 1]),
    ]
    assert last(singles) == [2.0, 3.0, 2.0]
    assert [len(each) for each in singles] == [
        N * size,
        size - 2 if r == 2 else 1,
        N * (1 if r else size - 2),
    ]
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [3, 40_001])
def test_verbs_of_parts(cluster: Cluster, xp: Any, size: int) -> None:
    cluster.run(in_parts, xp, size)


def several_at_once(xp: Any) -> None:
    dist.init_process_group()
    rank = dist.get_rank()
    arrays = [xp.full(1000, float(rank + i)) for i in range(8)]
    works = [dist.all_reduce(array, dist.ReduceOp.AVG, async_op=True) for array in arrays]
    for i, (array, work) in enumerate(zip(arrays, works, strict=True)):
        work.wait()
        close(array, np.full(1000, 1.0 + i))
    dist.destroy_process_group()


def test_several_at_once(cluster: Cluster, xp: Any) -> None:
    cluster.run(several_at_once, xp)


def mixed(xp: Any) -> None:
    """Ranks with and without a GPU reduce together: what travels is the same."""
    dist.init_process_group()
    rank = dist.get_rank()
    array = xp.full(4, 1.0) if rank == 0 else np.full(4, 1.0)
    dist.all_reduce(array)
    assert host(array).tolist() == [float(N)] * 4
    assert on_gpu(array) == (rank == 0)
    dist.destroy_process_group()


def test_ranks_with_and_without_a_gpu(cluster: Cluster, xp: Any) -> None:
    cluster.run(mixed, xp)
