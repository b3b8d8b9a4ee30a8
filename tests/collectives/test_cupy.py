"""Arrays on a GPU go by way of the host, in place and back; CuPy is stood in for."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.arrays import copy_into
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
