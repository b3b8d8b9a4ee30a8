"""Data-parallel training with the model on the GPU: the gradients of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import arrays, nn, optim
from telegrad import collectives as dist
from telegrad.parallel import (
    DistributedDataParallel,
    GradientBucket,
    bfloat16_compress_hook,
    float16_compress_hook,
)
from telegrad.testing import Cluster
from tests.gpu.comparison import close, host, normal, on_gpu
from tests.gpu.launches import launches

N, BATCH = 2, 12
CLUSTER_SIZE = N
IMAGES = normal(0, BATCH, 6)
LABELS = np.random.default_rng(1).integers(0, 4, BATCH)


class Model(nn.Module):
    """A perceptron, with a layer that not every rank uses."""

    def __init__(self, seed: int, device: str) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.first = nn.Linear(6, 8, dtype=np.float64, rng=rng)
        self.extra = nn.Linear(8, 8, dtype=np.float64, rng=rng)
        self.last = nn.Linear(8, 4, dtype=np.float64, rng=rng)
        self.to(device)

    def forward(self, x: Any, extra: bool = False) -> Any:
        hidden = nn.functional.relu(self.first(x))
        return self.last(self.extra(hidden) if extra else hidden)


def train(bucket_bytes: int) -> list[Any]:
    dist.init_process_group()
    rank = dist.get_rank()
    model = Model(rank, "cuda")  # rank 0's values are everybody's
    parallel = DistributedDataParallel(model, bucket_bytes=bucket_bytes)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = arrays.to_device(IMAGES[rank::N], "cuda")
    labels = arrays.to_device(LABELS[rank::N], "cuda")
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(images), labels).backward()
        assert all(p.grad is None or on_gpu(p.grad) for p in model.parameters())
        optimizer.step()
    assert all(map(on_gpu, model.parameters()))
    dist.destroy_process_group()
    return [host(parameter) for parameter in model.parameters()]


def on_one_worker() -> list[Any]:
    model = Model(0, "cpu")
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()
    return [parameter.data for parameter in model.parameters()]


@pytest.mark.few(1)
@pytest.mark.parametrize("bucket_bytes", [1, 400, 25 * 2**20])
def test_training_is_that_of_one_worker(cluster: Cluster, bucket_bytes: int) -> None:
    first, second = cluster.run(train, bucket_bytes)
    for a, b, expected in zip(first, second, on_one_worker(), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, expected, rtol=1e-10)


def unused_on_one_rank() -> None:
    dist.init_process_group()
    rank = dist.get_rank()
    model = Model(0, "cuda")
    parallel = DistributedDataParallel(model)
    images = arrays.to_device(IMAGES, "cuda")
    with parallel.no_sync():
        parallel(images).sum().backward()
    parallel(images, extra=rank == 0).sum().backward()
    extra = Model(0, "cpu")
    extra(IMAGES, extra=True).sum().backward()
    assert model.extra.weight.grad is not None
    assert extra.extra.weight.grad is not None
    close(model.extra.weight.grad, extra.extra.weight.grad.data / N)
    dist.destroy_process_group()


def test_a_layer_that_one_rank_alone_uses(cluster: Cluster) -> None:
    cluster.run(unused_on_one_rank)


def average(hook: Any) -> Any:
    group = dist.init_process_group()
    buffer = arrays.to_device(np.array([1.0, -2.5, 1e6], np.float32), "cuda")
    found = hook(None, GradientBucket(0, buffer, (), True, group, "a bucket")).wait()
    assert found is buffer
    return host(found)


@pytest.mark.parametrize("hook", [float16_compress_hook, bfloat16_compress_hook])
def test_buckets_are_cast_on_the_gpu(stand_in_alone: Any, hook: Any) -> None:
    with Cluster(1) as cluster, launches() as names:
        (found,) = cluster.run(average, hook)
    assert names.count("flatten") == 2, names
    assert not set(names) & {"astype", "multiply", "true_divide"}, names
    expected = [1, -2.5, np.inf if hook is float16_compress_hook else 999424]
    np.testing.assert_array_equal(found, expected)


def test_a_cupy_without_bfloat16_casts_on_the_host(
    stand_in_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = stand_in_alone.empty

    def refusing(shape: Any, dtype: Any = float, **options: Any) -> Any:
        if np.dtype(dtype).name == "bfloat16":
            raise TypeError("no dtype of CuPy 13")
        return empty(shape, dtype, **options)

    monkeypatch.setattr(stand_in_alone, "empty", refusing)
    with Cluster(1) as cluster:
        (found,) = cluster.run(average, bfloat16_compress_hook)
    np.testing.assert_array_equal(found, [1, -2.5, 999424])
