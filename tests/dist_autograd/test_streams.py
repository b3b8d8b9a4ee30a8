"""Tensors in the items of a stream take part in the context in which it was opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, is_grad_enabled, no_grad, tensor
from telegrad.dist_autograd.seams import Container
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster, leaks

X = np.random.default_rng(7).normal(size=(6, 4))
W = np.random.default_rng(8).normal(size=(4, 3))
V = np.random.default_rng(9).normal(size=(3, 3))


class Weight:
    def __init__(self, value: Any) -> None:
        self.value = tensor(value, requires_grad=True)

    def times(self, x: Tensor) -> Tensor:
        return x @ self.value

    def gradient(self, context_id: int) -> Any:
        return dist_autograd.get_gradients(context_id)[self.value].data


def rows(weight: rpc.RRef[Weight], x: Tensor, then: rpc.RRef[Weight]) -> Iterator[Tensor]:
    """One row of x at a time, through its own weight and that of another worker."""
    mine = weight.local_value()
    for i in range(x.shape[0]):
        yield then.rpc_sync().times(mine.times(x[i : i + 1]))


async def arows(
    weight: rpc.RRef[Weight], x: Tensor, then: rpc.RRef[Weight]
) -> AsyncIterator[Tensor]:
    mine = weight.local_value()
    for i in range(x.shape[0]):
        yield await then.rpc_async().times(mine.times(x[i : i + 1]))


def expected() -> tuple[Any, Any, Any]:
    x, w, v = (tensor(each, requires_grad=True) for each in (X, W, V))
    y = (x @ w) @ v
    (y * y).sum().backward()
    found = [each.grad for each in (x, w, v)]
    assert all(each is not None for each in found)
    return tuple(each.data for each in found if each is not None)  # type: ignore[return-value]


def train(func: Callable[..., Any]) -> None:
    weight, then = rpc.remote("worker1", Weight, (W,)), rpc.remote("worker2", Weight, (V,))
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        losses = [(y * y).sum() for y in rpc.stream("worker1", func, (weight, x, then))]
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        dist_autograd.backward(context_id, [total])
        found = [
            dist_autograd.get_gradients(context_id)[x].data,
            weight.rpc_sync().gradient(context_id),
            then.rpc_sync().gradient(context_id),
        ]
    for actual, wanted in zip(found, expected(), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-10)


@pytest.mark.parametrize("func", [rows, arows])
def test_gradients_through_items(cluster: Cluster, func: Callable[..., Any]) -> None:
    cluster.call(0, train, func)
    leaks.wait_until_gone("contexts", lambda: range(sum(cluster.run(contexts))))


def contexts() -> int:
    return len(current_agent().attachments[Container])


def read_a_part(func: Callable[..., Any]) -> None:
    """What was sent and never read counts for nothing, and the backward ends."""
    weight, then = rpc.remote("worker1", Weight, (W,)), rpc.remote("worker2", Weight, (V,))
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        with rpc.stream("worker1", func, (weight, x, then)) as items:
            loss = next(items).sum() + next(items).sum()
        dist_autograd.backward(context_id, [loss])
        gradient = dist_autograd.get_gradients(context_id)[x].data
    np.testing.assert_allclose(gradient[:2], np.ones((2, 3)) @ V.T @ W.T, rtol=1e-10)
    np.testing.assert_array_equal(gradient[2:], 0.0)


@pytest.mark.parametrize("func", [rows, arows])
def test_items_that_are_never_read(cluster: Cluster, func: Callable[..., Any]) -> None:
    for _ in range(10):
        cluster.call(0, read_a_part, func)
    leaks.wait_until_gone("contexts", lambda: range(sum(cluster.run(contexts))))


def modes(n: int) -> Iterator[tuple[bool, bool]]:
    """The mode that it was called in, and that of a block around a `yield`."""
    for _ in range(n):
        outside = is_grad_enabled()
        with no_grad():
            yield outside, is_grad_enabled()


def read_modes() -> None:
    assert list(rpc.stream("worker1", modes, (100,))) == [(True, False)] * 100
    with no_grad():
        items = rpc.stream("worker1", modes, (100,))
    assert list(items) == [(False, False)] * 100


def test_grad_mode(cluster: Cluster) -> None:
    cluster.call(0, read_modes)
