"""Hooks that average buckets in other ways, on ranks of a cluster."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.autograd import tensor
from telegrad.errors import InvalidUseError, TelegradError, WorkerLostError
from telegrad.nn import Linear, Module, Sequential, Tanh
from telegrad.parallel import (
    CommHook,
    DistributedDataParallel,
    GradientBucket,
    allreduce_hook,
    bfloat16_compress_hook,
    float16_compress_hook,
)
from telegrad.rpc import Future
from telegrad.testing import Cluster, FaultPlan, faulty_network
from telegrad.types import Array

N = 3
CLUSTER_SIZE = N
X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


def net() -> Module:
    rng = np.random.default_rng(0)
    return Sequential(Linear(4, 64, rng=rng), Tanh(), Linear(64, 4, rng=rng))


def backward(model: Module, rows: Array) -> list[Array]:
    outputs: Any = model(tensor(rows))
    (outputs * outputs).mean().backward()
    return [p.grad.data for p in model.parameters() if p.grad is not None]


def wrap(hook: CommHook | None) -> tuple[DistributedDataParallel, int]:
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net(), bucket_bytes=1000)
    if hook is not None:
        model.register_comm_hook(None, hook)
    return model, rank


def hooked(hook: CommHook | None) -> tuple[list[Array], int]:
    """Returns the gradients of the second backward, and the bytes sent for it."""
    model, rank = wrap(hook)
    backward(model, X[rank::N])
    model.zero_grad()
    before = dist.world_group().statistics().bytes_sent
    gradients = backward(model, X[rank::N])
    return gradients, dist.world_group().statistics().bytes_sent - before


@pytest.mark.parametrize(
    ("hook", "precision", "share"),
    [
        (allreduce_hook, 1e-5, 1.0),
        (float16_compress_hook, 2e-3, 0.5),
        (bfloat16_compress_hook, 2e-2, 0.5),
    ],
)
def test_a_built_in_hook_averages(
    cluster: Cluster, hook: CommHook, precision: float, share: float
) -> None:
    expected = backward(net(), X)
    found = cluster.run(hooked, hook)
    for gradients, _ in found:
        for value, exact, first in zip(gradients, expected, found[0][0], strict=True):
            assert value.dtype == np.float32
            assert value.tobytes() == first.tobytes()
            np.testing.assert_allclose(value, exact, precision, precision * np.abs(exact).max())
    items = sum(exact.size for exact in expected)
    of_all = found[0][1] - (N - 1) * len(expected)  # a byte for each parameter
    assert of_all == pytest.approx((N - 1) * items * 4 * share)


@pytest.mark.parametrize("dtype", [np.complex64, np.float16, ml_dtypes.bfloat16])
def test_items_that_cannot_be_compressed_are_averaged_as_they_are(
    cluster: Cluster, dtype: Any
) -> None:
    def average() -> tuple[bool, bool]:
        group = dist.init_process_group()
        buffer = np.arange(3).astype(dtype)
        bucket = GradientBucket(0, buffer, (), True, group, "a bucket")
        found = [h(None, bucket).wait() for h in (float16_compress_hook, bfloat16_compress_hook)]
        return all(each is buffer for each in found), bool((buffer == np.arange(3)).all())

    assert cluster.run(average) == [(True, True)] * N


def test_a_large_gradient_overflows_in_float16_alone(cluster: Cluster) -> None:
    def average(hook: CommHook) -> float:
        group = dist.init_process_group()
        bucket = GradientBucket(0, np.full(1, 1e6, np.float32), (), True, group, "a bucket")
        return float(hook(None, bucket).wait()[0])

    assert cluster.run(average, float16_compress_hook) == [np.inf] * N
    with Cluster(1) as one:
        assert one.run(average, bfloat16_compress_hook) == [pytest.approx(1e6, rel=1e-2)]


def hook_of_the_document() -> CommHook:
    text = (Path(__file__).parents[2] / "docs" / "data-parallel.md").read_text()
    (program,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "def average_in" in each
    ]
    names: dict[str, Any] = {"np": np, "dist": dist}
    exec(program, names)
    return cast("CommHook", names["average_in_float32"])


def test_the_hook_of_the_document_averages(cluster: Cluster) -> None:
    expected = backward(net(), X)
    for gradients, _ in cluster.run(hooked, hook_of_the_document()):
        for value, exact in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(value, exact, 1e-4, 1e-6)


def fail_at_once(_: object, bucket: GradientBucket) -> Future[Array]:
    raise ArithmeticError("no average today")


def cut_and_fail(_: object, bucket: GradientBucket) -> Future[Array]:
    faulty_network().partition("worker1", "worker2", one_way=True)
    raise ArithmeticError("no average today")


def failing_and_leaving() -> str:
    """Rank 2 hears nothing of rank 1, whose hook fails; rank 0 hears it, and leaves."""
    model, rank = wrap(None)
    model.register_comm_hook(None, cut_and_fail if rank == 1 else allreduce_hook)
    with pytest.raises(ArithmeticError, match="no average today"):
        backward(model, X[rank::N])
    dist.destroy_process_group()
    return "failed"


def test_a_rank_that_leaves_tells_why_backward_has_failed() -> None:
    with Cluster(N, faults=FaultPlan()) as cluster:
        assert cluster.run(failing_and_leaving) == ["failed"] * N
        cluster.network.heal()


def failing_with_a_group_of_the_hook() -> str:
    """The others' hooks wait in a group that knows nothing of the failure."""
    model, rank = wrap(None)
    group = dist.new_group(range(N))
    model.register_comm_hook(group, fail_at_once if rank == 1 else allreduce_hook)
    with pytest.raises(ArithmeticError, match="no average today"):
        backward(model, X[rank::N])
    return "failed"


def test_a_hook_with_a_group_of_its_own_does_not_hang(cluster: Cluster) -> None:
    assert cluster.run(failing_with_a_group_of_the_hook) == ["failed"] * N


def killed_in_a_hook() -> str:
    """The process of rank 2 ends while its second bucket waits for its average."""
    model, rank = wrap(None)

    def kill(_: object, bucket: GradientBucket) -> Future[Array]:
        if bucket.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return allreduce_hook(None, bucket)

    model.register_comm_hook(None, kill if rank == 2 else allreduce_hook)
    with pytest.raises(WorkerLostError) as caught:
        backward(model, X[rank::N])
    assert all(parameter.grad is None for parameter in model.parameters())
    return str(caught.value)


def test_a_process_that_is_killed_in_a_hook_fails_backward_on_the_others() -> None:
    with Cluster(N, processes=True) as cluster, ThreadPoolExecutor(N) as pool:
        running = [pool.submit(cluster.call, r, killed_in_a_hook) for r in range(N)]
        for future in running[:2]:
            assert "worker2" in future.result()
        assert running[2].exception() is not None
        cluster.kill(2)


def hook_on_some() -> None:
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net())
    if rank == 1:
        model.register_comm_hook(None, allreduce_hook)
    with pytest.raises(TelegradError, match="bucket 0"):
        backward(model, X[rank::N])


def test_a_hook_on_some_ranks_alone_is_an_error_on_every(cluster: Cluster) -> None:
    cluster.run(hook_on_some)


def registrations() -> None:
    model, rank = wrap(None)
    with pytest.raises(
        TypeError, match="a communication hook is a function of a state and a bucket"
    ):
        model.register_comm_hook(None, cast("CommHook", "average"))
    model.register_comm_hook(None, allreduce_hook)
    with pytest.raises(InvalidUseError, match="has a communication hook already"):
        model.register_comm_hook(None, allreduce_hook)
    late = DistributedDataParallel(net())
    backward(late, X[rank::N])
    with pytest.raises(InvalidUseError, match="has averaged 1 backwards; register"):
        late.register_comm_hook(None, allreduce_hook)
    backward(late, X[rank::N])  # nothing was started by what was refused


def test_a_mistake_is_refused_before_anything_starts(cluster: Cluster) -> None:
    cluster.run(registrations)
