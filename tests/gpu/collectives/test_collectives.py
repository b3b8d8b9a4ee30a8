"""Collectives on arrays of the GPU, by way of host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad import collectives as dist
from telegrad.collectives import ReduceOp
from telegrad.testing import Cluster
from tests.gpu.collectives import test_nccl

N = 3
LONG = 1 << 18


def reductions(xp: Any) -> list[Any]:
    dist.init_process_group()
    found = []
    for size in (0, 1, 2 * N + 1, LONG):
        for op, dtype in ((ReduceOp.SUM, "float32"), (ReduceOp.MAX, "int64")):
            found += test_nccl.reductions(xp, op, dtype, size)
    test_nccl.factors(xp, np.float64)
    dist.destroy_process_group()
    return found


def test_reductions(cluster: Cluster, xp: Any) -> None:
    first, *others = cluster.run(reductions, xp)
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)  # bitwise, on all ranks


def exchanges(xp: Any) -> None:
    dist.init_process_group()
    for root, shape in enumerate([(), (0,), (40_001, 1)]):
        test_nccl.exchanges(xp, np.float64, shape, root)
    for function in (
        test_nccl.of_several_sizes,
        test_nccl.all_in_one,
        test_nccl.started,
        test_nccl.other_kinds,
        test_nccl.one_after_the_other,
        test_nccl.on_one_end_alone,
    ):
        function(xp)
    dist.destroy_process_group()


def test_exchanges(cluster: Cluster, xp: Any) -> None:
    cluster.run(exchanges, xp)
