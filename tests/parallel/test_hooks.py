"""Hooks that average buckets in other ways, on ranks of a cluster."""

from __future__ import annotations

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import parallel
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


def hook_of_the_document(name: str) -> CommHook:
    text = (Path(__file__).parents[2] / "docs" / "data-parallel.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (program,) = [each for each in programs if f"def {name}" in each]
    names: dict[str, Any] = {"np": np, "dist": dist, "parallel": parallel}
    exec(program, names)
    return cast("CommHook", names[name])


def test_the_hook_of_the_document_averages(cluster: Cluster) -> None:
    expected = backward(net(), X)
    for gradients, _ in cluster.run(hooked, hook_of_the_document("average_in_float32")):
        for value, exact in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(value, exact, 1e-4, 1e-6)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_the_hook_of_the_document_with_two_operations_clips(cluster: Cluster, limit: float) -> None:
    hook = hook_of_the_document("clip_and_average")
    expected = backward(net(), X)
    for gradients, _ in cluster.run(hooked, lambda _, bucket: hook(limit, bucket)):
        for value, exact in zip(gradients, expected, strict=True):
            if limit < 1:
                assert np.abs(value).max() <= 1.001 * limit
            else:
                np.testing.assert_allclose(value, exact, 1e-5, 1e-6)


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


def reduce_again(group: dist.ProcessGroup, bucket: GradientBucket) -> Future[Array]:
    work = dist.all_reduce(bucket.buffer, AVG, group, async_op=True, label=bucket.label)
    return work.then(lambda done: (done.value(), bucket.buffer)[1])


def reduce_again_and_wait(group: dist.ProcessGroup, bucket: GradientBucket) -> Array:
    dist.all_reduce(bucket.buffer, AVG, group, label=bucket.label)
    return bucket.buffer


def reduce_in_a_block(group: dist.ProcessGroup, bucket: GradientBucket) -> Array:
    with dist.coalesced(group):
        dist.all_reduce(bucket.buffer, AVG, group)
    return bucket.buffer


def exchange_objects(group: dist.ProcessGroup, bucket: GradientBucket) -> Array:
    found = dist.all_gather_object(bucket.buffer, group=group)
    return np.asarray(np.mean(found, axis=0, dtype=np.float32))


AVG = dist.ReduceOp.AVG
BUCKETS = 4  # of `net` with buckets of at most 1000 bytes


class InTwoStages:
    """A hook of PowerSGD's shape: the second reduction of a bucket needs the result of the first.

    Rank 0 begins no second stage before the first stages of all buckets, and then the last one
    first, unless the second stage blocks. The other ranks begin the second stage of each bucket
    before the first stage of the next one.
    """

    def __init__(self, second: Any, *, own_group: bool, fails: bool = False) -> None:
        self.second = second
        self.rank = dist.get_rank()
        self.group = dist.new_group(range(N)) if own_group else dist.world_group()
        self.fails = fails
        self.begin()

    def begin(self) -> None:
        """Prepares it for the next backward."""
        self.may_begin: list[Future[None]] = [Future() for _ in range(BUCKETS)]
        self.begun = [threading.Event() for _ in range(BUCKETS)]

    def __call__(self, _: object, bucket: GradientBucket) -> Future[Array]:
        if self.rank > 0 and bucket.index > 0:
            self.begun[bucket.index - 1].wait()
        label = f"{bucket.label}, first"
        first = dist.all_reduce(bucket.buffer[:4].copy(), AVG, async_op=True, label=label)
        second = first.then(partial(self.go_on, bucket))
        if bucket.is_last:
            for may in self.may_begin[-1:] if self.second is reduce_again else self.may_begin:
                may.set_result(None)
        return second

    def go_on(self, bucket: GradientBucket, first: Future[Any]) -> Any:
        if first.exception() is not None:
            self.begun[bucket.index].set()
            first.value()
        if self.rank == 0:
            return self.may_begin[bucket.index].then(lambda _: self.begin_second(bucket))
        return self.begin_second(bucket)

    def begin_second(self, bucket: GradientBucket) -> Any:
        try:
            if self.fails and bucket.index == 1 and self.rank == 1:
                raise ArithmeticError("no second stage today")
            return self.second(self.group, bucket)
        finally:
            self.begun[bucket.index].set()
            if self.second is reduce_again and bucket.index > 0:
                self.may_begin[bucket.index - 1].set_result(None)


def trained_in_two_stages(second: Any, own_group: bool) -> list[list[Array]]:
    model, rank = wrap(None)
    hook = InTwoStages(second, own_group=own_group)
    model.register_comm_hook(None, hook)
    found = []
    for _ in range(3):
        found.append(backward(model, X[rank::N]))
        model.zero_grad()
        hook.begin()
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("second", "own_group"),
    [
        (reduce_again, False),
        (reduce_again, True),
        (reduce_again_and_wait, False),
        (reduce_in_a_block, False),
        (exchange_objects, False),
    ],
)
def test_a_hook_may_reduce_twice(cluster: Cluster, second: Any, own_group: bool) -> None:
    expected = backward(net(), X)
    for passes in cluster.run(trained_in_two_stages, second, own_group):
        assert len(passes) == 3
        for gradients in passes:
            for value, exact in zip(gradients, expected, strict=True):
                np.testing.assert_allclose(value, exact, 1e-5, 1e-6)


def fail_in_the_second_stage(own_group: bool) -> str:
    model, rank = wrap(None)
    model.register_comm_hook(None, InTwoStages(reduce_again, own_group=own_group, fails=True))
    with pytest.raises(ArithmeticError, match="no second stage today"):
        backward(model, X[rank::N])
    assert all(parameter.grad is None for parameter in model.parameters())
    return "failed"


@pytest.mark.parametrize("own_group", [False, True])
def test_a_failure_in_a_second_stage_fails_backward_on_every_rank(
    cluster: Cluster, own_group: bool
) -> None:
    assert cluster.run(fail_in_the_second_stage, own_group) == ["failed"] * N


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


@pytest.mark.long
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
