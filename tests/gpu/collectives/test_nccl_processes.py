"""Collectives by NCCL between processes, one on each GPU: the stand-in alone, for lack of GPUs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.arrays import Communicator
from telegrad.collectives import ReduceOp
from telegrad.errors import WorkerLostError
from telegrad.testing import Cluster
from tests.collectives.remote_code import refusal
from tests.gpu.collectives import test_nccl
from tests.gpu.sharing import import_cupy_there, kill_this_process, shrinks

N = 3


@pytest.fixture
def cluster(three_gpus: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    import_cupy_there(three_gpus, monkeypatch, tmp_path)
    with Cluster(N, processes=True) as cluster:
        yield cluster


def on_own_gpu(function: Callable[..., Any]) -> Any:
    """Runs a function in a group by NCCL, with the GPU of this rank as the current one."""
    xp: Any = importlib.import_module("cupy")
    group = dist.init_process_group(backend="nccl")
    with xp.cuda.Device(group.rank):
        try:
            return function(xp)
        finally:
            if not group.failed:
                dist.destroy_process_group()


def everything(xp: Any) -> None:
    test_nccl.reductions(xp, ReduceOp.SUM, "float32", 7)
    test_nccl.reductions(xp, ReduceOp.MAX, "int64", 300_001)
    test_nccl.exchanges(xp, "complex128", (7, 3), 1)
    test_nccl.of_several_sizes(xp)
    test_nccl.started(xp)
    test_nccl.passed_round(xp, True)
    test_nccl.one_after_the_other(xp)
    test_nccl.trained_alike(test_nccl.trained(xp))


@pytest.mark.long
def test_operations_messages_and_training(cluster: Cluster) -> None:
    cluster.run(on_own_gpu, everything)


def dies(xp: Any) -> list[str]:
    """Rank 1 dies when all have entered, and the kernels of the others wait for its own."""
    group, array = dist.world_group(), xp.ones(1000, np.float32)
    dist.all_reduce(array)
    if group.rank == 1:
        Communicator.all_reduce = kill_this_process  # type: ignore[method-assign, assignment]
    work = dist.all_reduce(array, async_op=True)
    work.wait()
    xp.cuda.get_current_stream().synchronize()  # the kernels are aborted
    found = [refusal(lambda: test_nccl.done(work)), refusal(dist.barrier)]
    shrinks(xp, group, 1000)
    return found


def test_a_rank_that_dies(cluster: Cluster) -> None:
    with ThreadPoolExecutor(N) as pool:
        ranks = [pool.submit(cluster.call, r, on_own_gpu, dies) for r in range(N)]
        for r in (0, 2):
            for said in ranks[r].result():
                assert said.startswith("WorkerLostError: "), said
        with pytest.raises(WorkerLostError):
            ranks[1].result()
