"""Gradients through calls with Tensors on the GPU equal local ones; the optimizer steps there."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import telegrad as tg
from telegrad import arrays, dist_autograd, nn, optim, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.dist_autograd import pass_runner
from telegrad.dist_autograd.functions import SendFunction
from telegrad.parallel import DistributedOptimizer, parameter_rrefs
from telegrad.testing import Cluster
from telegrad.types import WorkerInfo
from tests.collectives.remote_code import refusal
from tests.gpu.comparison import close, host, normal, on_gpu

CLUSTER_SIZE = 2
X = normal(0, 6, 4)


def tanh(x: Tensor) -> Tensor:
    return cast("Tensor", np.tanh(x))


class Layer(nn.Module):
    """The same wherever it is made; computes where its parameters are."""

    def __init__(self, seed: int, device: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=np.float64, rng=np.random.default_rng(seed))
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        return tanh(self.linear(x.to(self.linear.weight.device)))

    def gradients(self, context_id: int) -> list[Any]:
        found = dist_autograd.get_gradients(context_id)
        return [found[parameter].data for parameter in self.parameters()]

    def values(self) -> list[Any]:
        return [parameter.data for parameter in self.parameters()]


def loss_of(y: Tensor) -> Tensor:
    return (y * y).sum()


def penalties(xp: Any) -> None:
    """Gradients of gradients, and a root that stays on the GPU of another worker."""
    head = rpc.remote("worker1", Layer, (2, "cuda"))
    given = np.ones(X.shape)
    with dist_autograd.context() as context_id:
        x = tensor(xp.asarray(X), requires_grad=True)
        y = head.remote().forward(x)
        (slope,) = dist_autograd.grad(context_id, y, x, xp.asarray(given), create_graph=True)
        assert on_gpu(slope)
        dist_autograd.backward(context_id, [loss_of(slope), y], [None, given])
        found = dist_autograd.get_gradients(context_id)[x]
    local, z = Layer(2, "cpu"), tensor(X, requires_grad=True)
    (first,) = tg.grad(local.forward(z), z, given, create_graph=True)
    (loss_of(first) + local.forward(z).sum()).backward()
    close(found, z.grad)


def test_gradients_of_gradients(cluster: Cluster, xp: Any) -> None:
    cluster.call(0, penalties, xp)


def steps(there: str) -> None:
    stem, head = Layer(1, "cuda"), rpc.remote("worker1", Layer, (2, there))
    rrefs = [*parameter_rrefs(stem), *parameter_rrefs(head)]
    optimizer = DistributedOptimizer(optim.SGD, rrefs, lr=0.1, momentum=0.9)
    for _ in range(3):
        with dist_autograd.context() as context_id:
            loss = loss_of(head.rpc_sync().forward(stem.forward(tensor(X, device="cuda"))))
            dist_autograd.backward(context_id, [loss])
            assert all(map(on_gpu, stem.gradients(context_id)))
            for gradient in head.rpc_sync().gradients(context_id):
                assert on_gpu(gradient) == (there == "cuda")
            optimizer.step(context_id)
    local = [Layer(seed, "cpu") for seed in (1, 2)]
    local_optimizer = optim.SGD(
        [p for layer in local for p in layer.parameters()], lr=0.1, momentum=0.9
    )
    for _ in range(3):
        local_optimizer.zero_grad()
        loss_of(local[1].forward(local[0].forward(tensor(X)))).backward()
        local_optimizer.step()
    found = [*stem.values(), *head.rpc_sync().values()]
    expected = [value for layer in local for value in layer.values()]
    for i, (actual, wanted) in enumerate(zip(found, expected, strict=True)):
        assert on_gpu(actual) == (i < 2 or there == "cuda")
        np.testing.assert_allclose(host(actual), wanted, rtol=1e-10)


@pytest.mark.parametrize("there", ["cuda", "cpu"])
def test_a_model_split_over_two_workers_is_trained(cluster: Cluster, there: str) -> None:
    cluster.call(0, steps, there)


def test_a_gradient_comes_back_to_the_device_of_its_tensor(xp: Any) -> None:
    """A worker without CuPy answers with NumPy's arrays: the rule before it got one and raised."""
    assert sys.modules["cupy"] is xp
    node = SendFunction(
        [tensor(xp.ones(2)), tensor(np.ones(2)), tensor(xp.ones(2))],
        context_id=1,
        peer=WorkerInfo("worker1", 1, 1),
        message=1,
    )
    first, second, third = node.backward((np.ones(2), xp.ones(2), None))
    close(first, np.ones(2))
    assert second is not None
    assert not arrays.is_cupy(second)
    assert third is None


def twice(x: Tensor) -> Tensor:
    return x * 2.0


def with_a_gpu_that_fails(xp: Any) -> list[str]:
    """The GPU fails while this worker hears a gradient; the pass ends at both ends at once."""
    found = []
    for part in ("place", "stream"):
        x = tensor(xp.asarray(X), requires_grad=True)
        with dist_autograd.context() as context_id, pytest.MonkeyPatch.context() as patch:
            y = rpc.rpc_sync("worker1", twice, (x,)).sum()
            if part == "place":
                patch.setattr(pass_runner, "current_place", broken)
            else:
                patch.setattr(arrays.Streams, "lend", broken)
            found.append(refusal(partial(dist_autograd.backward, context_id, [y], timeout=30.0)))
    return found


def broken(*args: Any) -> Any:
    raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")


def test_a_gpu_that_fails_while_a_gradient_is_heard(cluster: Cluster, xp: Any) -> None:
    for said in cluster.call(0, with_a_gpu_that_fails, xp):
        assert "cudaErrorIllegalAddress" in said
