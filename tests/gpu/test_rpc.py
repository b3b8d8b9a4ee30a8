"""Calls with arrays of the GPU: arguments, results, references, functions of NumPy by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad import arrays, rpc
from telegrad.testing import Cluster
from tests.gpu.comparison import close, host, normal, on_gpu

CLUSTER_SIZE = 2
BIG = (1 << 20, 3)  # 24 MiB: more than one message of gRPC's


def weighted(x: Any, y: Any, *, scale: float) -> Any:
    assert on_gpu(x)
    assert on_gpu(y)
    return {"sum": scale * (x + y), "dot": (x * y).sum(), "host": host(x)}


class Counter:
    """Keeps an array on its worker's GPU."""

    def __init__(self, start: Any) -> None:
        self.total = start

    def add(self, x: Any) -> Any:
        self.total = self.total + x
        return self.total


def on_caller(cluster: Cluster, program: Callable[..., None], *args: Any) -> None:
    cluster.call(0, program, *args)


def arguments_and_results(xp: Any) -> None:
    x, y = normal(0, 4, 3), normal(1, 3)
    arrived = rpc.rpc_sync("worker1", weighted, (xp.asarray(x), xp.asarray(y)), {"scale": 2.0})
    close(arrived["sum"], 2.0 * (x + y))
    close(arrived["dot"], np.sum(x * y))
    assert type(arrived["host"]) is np.ndarray
    futures = [rpc.rpc_async("worker1", np.add, (xp.asarray(x), i)) for i in range(8)]
    for i, result in enumerate(rpc.wait_all(futures)):
        close(result, x + i)


def test_arguments_and_results(cluster: Cluster, xp: Any) -> None:
    on_caller(cluster, arguments_and_results, xp)


def calls_to_oneself(xp: Any) -> None:
    x = xp.zeros(3)
    future = rpc.rpc_async("worker0", np.add, (x, 0.0))
    result = future.wait()
    assert result is not x
    close(result, np.zeros(3))


def test_a_call_to_oneself_copies(cluster: Cluster, xp: Any) -> None:
    on_caller(cluster, calls_to_oneself, xp)


def references(xp: Any) -> None:
    counter = rpc.remote("worker1", Counter, (xp.zeros(2),))
    for i in range(3):
        counter.rpc_sync().add(xp.asarray(np.array([1.0, float(i)])))
    close(counter.rpc_sync().add(0.0), np.array([3.0, 3.0]))
    held = rpc.RRef(xp.ones(3))
    assert held.local_value() is held.to_here()
    assert on_gpu(rpc.remote("worker1", np.negative, (xp.ones(3),)).to_here())


def test_references(cluster: Cluster, xp: Any) -> None:
    on_caller(cluster, references, xp)


def big_arrays(source: Any) -> None:
    there = arrays.to_device(source, "cuda")
    close(rpc.rpc_sync("worker1", np.negative, (there,)), -source)


def test_a_big_array(cluster: Cluster) -> None:
    on_caller(cluster, big_arrays, normal(0, *BIG))


def test_a_big_array_over_grpc(gpu: Any) -> None:
    """Workers that are processes of their own share the GPU, each with a CUDA context."""
    with Cluster(2, processes=True) as cluster:
        cluster.run(load_cupy)
        cluster.call(0, big_arrays, normal(0, *BIG))


def load_cupy() -> None:
    arrays.to_device(np.zeros(1), "cuda")
