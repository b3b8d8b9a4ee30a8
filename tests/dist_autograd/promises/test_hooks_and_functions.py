"""Hooks and custom Functions on both sides of a call: of tensors, of nodes, of leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.dist_autograd.seams import RecvFunction
from telegrad.testing import Cluster
from tests.autograd.graph.test_backward import Split
from tests.dist_autograd.promises.second_order import Softened

X = np.random.default_rng(5).normal(size=3)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    calls.clear()
    with Cluster(3) as cluster:
        yield cluster


calls: list[str] = []


def scales(name: str, factor: float) -> Callable[[Any], Any]:
    def hook(gradient: Any) -> Any:
        calls.append(name)
        return gradient * factor

    return hook


def hooked(x: Tensor, to: str | None = None) -> Tensor:
    """A hook on what was received, on a result, and on what is returned."""
    x.register_hook(scales("received", 2.0))
    y = x * x
    y.register_hook(scales("result", 3.0))
    if to is not None:
        y = rpc.rpc_sync(to, hooked, (y,))
        y.register_hook(scales("returned", 5.0))
    return y


def local_hooked(x: Tensor) -> Tensor:
    a = x * 1.0
    b = hooked(a) * 1.0
    c = hooked(b) * 1.0
    c.register_hook(scales("returned", 5.0))
    return c


def hooks_of_tensors() -> None:
    x, y = (tensor(X, requires_grad=True) for _ in range(2))
    for leaf in (x, y):
        leaf.register_hook(scales("leaf", 7.0))
    with dist_autograd.context() as context_id:
        end = rpc.rpc_sync("worker1", hooked, (x, "worker2"))
        dist_autograd.backward(context_id, [end.sum()], create_graph=True)
        found, here = dist_autograd.get_gradients(context_id)[x], list(calls)
        (again,) = dist_autograd.grad(context_id, found.sum(), x)
    calls.clear()
    (expected,) = tg.grad(local_hooked(y).sum(), y, create_graph=True)
    assert here == calls == ["returned", "result", "received", "result", "received", "leaf"]
    np.testing.assert_allclose(found.data, expected.data, rtol=1e-12)
    (exact,) = tg.grad(expected.sum(), y)
    np.testing.assert_allclose(again.data, exact.data, rtol=1e-12)


def test_hooks_of_tensors(cluster: Cluster) -> None:
    cluster.call(0, hooks_of_tensors)


# -- of nodes ------------------------------------------------------------------------------------------


def doubled(gradients: Any) -> Any:
    return tuple(gradient * 2.0 for gradient in gradients)


def hooked_nodes(x: Tensor) -> Tensor:
    received = x.grad_fn
    assert isinstance(received, RecvFunction)
    received.register_prehook(doubled)
    received.register_hook(lambda inputs, outputs: calls.append(f"{len(inputs)}, {len(outputs)}"))
    y = x * 3.0
    node = y.grad_fn
    assert node is not None
    node.register_hook(lambda inputs, outputs: tuple(g if g is None else -g for g in inputs))
    return y


def hooks_of_nodes() -> None:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync("worker1", hooked_nodes, (x,)).sum()])
        found = dist_autograd.get_gradients(context_id)[x].data
    np.testing.assert_array_equal(found, np.full(3, -6.0))
    assert calls == ["0, 1"]


def test_hooks_of_nodes(cluster: Cluster) -> None:
    cluster.call(0, hooks_of_nodes)


# -- of leaves -----------------------------------------------------------------------------------------


class Leafy:
    """A leaf on one worker, whose gradient a hook rewrites where it is kept."""

    def __init__(self) -> None:
        self.leaf = tensor(X, requires_grad=True)
        self.leaf.register_post_accumulate_hook(self._clip)

    def _clip(self, leaf: Tensor, target: Any) -> None:
        gradient = target.get(leaf)
        calls.append(type(gradient).__name__)
        target.replace(leaf, np.clip(gradient, -0.5, 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.leaf * 2.0

    def gradient(self, context_id: int) -> Any:
        assert self.leaf.grad is None
        return dist_autograd.get_gradients(context_id)[self.leaf]


def hooks_of_leaves() -> None:
    there, x = rpc.remote("worker1", Leafy), tensor(X, requires_grad=True)
    for create in (False, True):
        with dist_autograd.context() as context_id:
            value = there.rpc_sync().forward(x).sum()
            dist_autograd.backward(context_id, [value], create_graph=create)
            found = there.rpc_sync().gradient(context_id)
            np.testing.assert_allclose(found.data, np.clip(2 * X, -0.5, 0.5))
            assert found.requires_grad == create
            calls.clear()
            if create:  # what the hook did is recorded
                (slope,) = dist_autograd.grad(context_id, found.sum(), x)
                np.testing.assert_allclose(slope.data, np.where(abs(2 * X) < 0.5, 2.0, 0.0))
                assert calls == []  # grad adds to no leaf


def test_hooks_after_a_leaf(cluster: Cluster) -> None:
    cluster.call(0, hooks_of_leaves)


def retained() -> None:
    """A result keeps its gradient here, whether what follows is here or not."""
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        inner = x * 2.0
        outer = rpc.rpc_sync("worker1", square, (inner,))
        for each in (inner, outer):
            each.retain_grad()
        dist_autograd.backward(context_id, [outer.sum()])
    assert x.grad is None
    assert inner.grad is not None
    assert outer.grad is not None
    np.testing.assert_allclose(inner.grad.data, 4.0 * X)
    np.testing.assert_allclose(outer.grad.data, np.ones(3))


def square(x: Tensor) -> Tensor:
    return x * x


def test_retained_gradients(cluster: Cluster) -> None:
    cluster.call(0, retained)


# -- Functions -----------------------------------------------------------------------------------------


def split(x: Tensor) -> Any:
    assert x.requires_grad
    return Split.apply(Softened.apply(x))


def functions() -> None:
    """Their results are sent back, and some are not used."""
    x, y = (tensor(X, requires_grad=True) for _ in range(2))
    with dist_autograd.context() as context_id:
        doubled, squared, signs = rpc.rpc_sync("worker1", split, (Softened.apply(x),))
        assert not signs.requires_grad
        for used in ([0], [1], [0, 1]):
            loss = sum(((doubled, squared)[i] ** 2).sum() for i in used)
            (slope,) = dist_autograd.grad(context_id, loss, x, create_graph=True)
            (curve,) = dist_autograd.grad(context_id, (slope**2).sum(), x, retain_graph=True)
            local = Split.apply(Softened.apply(Softened.apply(y)))
            exact = sum((local[i] ** 2).sum() for i in used)
            (first,) = tg.grad(exact, y, create_graph=True)
            (second,) = tg.grad((first**2).sum(), y)
            np.testing.assert_allclose(slope.data, first.data, rtol=1e-12)
            np.testing.assert_allclose(curve.data, second.data, rtol=1e-10)


def test_functions_of_several_results(cluster: Cluster) -> None:
    cluster.call(0, functions)
