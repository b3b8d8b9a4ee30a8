"""Arrays on a GPU go by way of the host, in place and back; CuPy is stood in for."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.arrays import copy_into
from telegrad.collectives import ReduceOp
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.collectives.fake_cupy import FakeCupyArray, make_module
from tests.collectives.remote_code import LARGE


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = make_module()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def on_a_gpu(size: int) -> None:
    r = remote_code.begin()
    array: Any = FakeCupyArray(np.full((size, 2), r + 1.0).T)
    dist.all_reduce(array)
    assert array.shape == (2, size)
    assert (array.inside == 3.0).all()
    work = dist.all_reduce(array, async_op=True)
    work.wait()
    assert (array.inside == 6.0).all()
    root: Any = FakeCupyArray(np.full(size, float(r)))
    dist.broadcast(root, 1)
    assert (root.inside == 1.0).all()
    own: Any = FakeCupyArray(np.full(size, r))
    gathered: list[Any] = dist.all_gather(own)
    assert all(isinstance(each, FakeCupyArray) for each in gathered)
    assert [each.inside[0] for each in gathered] == [0, 1]
    if r == 0:
        dist.send(root, 1)
    else:
        received: Any = FakeCupyArray(np.zeros(size))
        dist.recv(received, 0)
        assert (received.inside == 1.0).all()


def in_parts_on_a_gpu(size: int) -> None:
    r = remote_code.begin()

    def on_gpu(value: float) -> Any:
        return FakeCupyArray(np.full(size, float(value)))

    def values(found: Any) -> list[float]:
        assert all(isinstance(each, FakeCupyArray) for each in found)
        return [float(each.inside[-1]) for each in found]

    reduced = on_gpu(r + 1)
    dist.reduce(reduced, 1)
    assert values([reduced]) == [3.0 if r else 1.0]
    part = on_gpu(0)
    dist.scatter(part, [on_gpu(5), on_gpu(6)] if r == 0 else None)
    assert values([part]) == [5.0 + r]
    gathered = dist.gather(on_gpu(r), 1)
    assert gathered is None if r == 0 else values(gathered) == [0.0, 1.0]
    assert values(dist.all_to_all([on_gpu(10 * r), on_gpu(10 * r + 1)])) == [r, 10.0 + r]
    own: Any = dist.reduce_scatter([on_gpu(1), on_gpu(2)], ReduceOp.PREMUL_SUM(on_gpu(2)))
    assert values([own]) == [4.0 + 4 * r]
    singles: list[Any] = [
        dist.all_gather_single(on_gpu(r)),
        dist.reduce_scatter_single(on_gpu(1), split_sizes=[1, size - 1]),
        dist.all_to_all_single(on_gpu(r), input_split_sizes=[size - 1, 1]),
    ]
    assert values(singles) == [1.0, 2.0, 1.0]
    assert [each.shape for each in singles] == [
        (2 * size,),
        (size - 1 if r else 1,),
        (2 if r else 2 * size - 2,),
    ]


@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.usefixtures("cupy")
def test_parts_on_a_gpu(size: int) -> None:
    with Cluster(2) as cluster:
        cluster.run(in_parts_on_a_gpu, size)


@pytest.mark.parametrize("size", [3, LARGE])
def test_arrays_on_a_gpu(cupy: Any, size: int) -> None:
    with Cluster(2) as cluster:
        cluster.run(on_a_gpu, size)
    assert cupy.stream.synchronised >= 2 * 3 + 1  # what was written in place is there


def test_copy_into(cupy: Any) -> None:
    target: Any = FakeCupyArray(np.zeros((2, 2)))
    copy_into(target, np.eye(2))
    np.testing.assert_array_equal(target.inside, np.eye(2))
    assert cupy.stream.synchronised == 1
