"""Distributed gradients equal local ones: the same program on one worker and on several."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import RowSparse, Tensor, no_grad, ops, tensor
from telegrad.errors import AutogradError
from telegrad.rpc import seams
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.types import Array

RELATIVE = 1e-10


def weights(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def tanh(x: Tensor) -> Tensor:
    return cast("Tensor", np.tanh(x))


class Layer:
    """Lives on one worker, with a weight that is the same wherever it is made."""

    def __init__(self, seed: int, n: int = 4) -> None:
        self.weight = tensor(weights(seed, n, n), requires_grad=True)
        self.unused = tensor(weights(seed + 1, n), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return tanh(x @ self.weight)

    def two(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x @ self.weight
        return tanh(hidden), hidden * 3.0

    async def forward_async(self, x: Tensor) -> Tensor:
        return tanh(x @ self.weight)

    def gradients(self, context_id: int) -> tuple[Array | None, Array | None]:
        found = dist_autograd.get_gradients(context_id)
        assert self.weight.grad is None
        weight, unused = found.get(self.weight), found.get(self.unused)
        return (
            None if weight is None else weight.data,
            None if unused is None else unused.data,
        )


def local_gradient(program: Callable[..., Tensor], *seeds: int) -> list[Array]:
    layers = [Layer(seed) for seed in seeds]
    program(*layers).backward()
    return [layer.weight.grad.data for layer in layers if layer.weight.grad is not None]


def close(actual: Array | None, expected: Array) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual, expected, rtol=RELATIVE)


X = weights(99, 5, 4)


# -- a model split over workers ----------------------------------------------------------------


def split_over_two() -> None:
    stem, head = Layer(1), rpc.remote("worker1", Layer, (2,))
    with dist_autograd.context() as context_id:
        hidden = stem.forward(tensor(X))
        loss = head.rpc_sync().forward(hidden).sum()
        dist_autograd.backward(context_id, [loss])
        own, remote = stem.gradients(context_id), head.rpc_sync().gradients(context_id)
    expected = local_gradient(lambda a, b: b.forward(a.forward(tensor(X))).sum(), 1, 2)
    close(own[0], expected[0])
    close(remote[0], expected[1])
    assert own[1] is None
    assert remote[1] is None


def test_a_model_split_over_two_workers(cluster: Cluster) -> None:
    cluster.call(0, split_over_two)


def split_over_three() -> None:
    layers = [rpc.remote(f"worker{r}", Layer, (r,)) for r in (0, 1, 2)]
    with dist_autograd.context() as context_id:
        x = tensor(X)
        for layer in layers:
            x = layer.rpc_sync().forward(x)
        dist_autograd.backward(context_id, [(x * x).sum()])
        found = [layer.rpc_sync().gradients(context_id)[0] for layer in layers]

    def program(a: Layer, b: Layer, c: Layer) -> Tensor:
        y = c.forward(b.forward(a.forward(tensor(X))))
        return (y * y).sum()

    for actual, expected in zip(found, local_gradient(program, 0, 1, 2), strict=True):
        close(actual, expected)


def test_a_model_split_over_three_workers(cluster: Cluster) -> None:
    cluster.call(0, split_over_three)


class Node:
    """Calls the next in line inside its own call: A calls B, B calls C, C calls A again."""

    def __init__(self, seed: int) -> None:
        self.layer = Layer(seed)
        self.following: list[Any] = []

    def follow(self, *others: Any) -> None:
        self.following.extend(others)

    def let_go(self) -> None:
        self.following.clear()

    def forward(self, x: Tensor, depth: int) -> Tensor:
        hidden = self.layer.forward(x)
        if depth == 0:
            return hidden
        rest: Tensor = self.following[0].rpc_sync().forward(hidden * 0.5, depth - 1)
        return hidden + rest

    def gradients(self, context_id: int) -> Array | None:
        return self.layer.gradients(context_id)[0]


def local_ring(layers: tuple[Layer, ...], x: Tensor, i: int, depth: int) -> Tensor:
    hidden = layers[i].forward(x)
    if depth == 0:
        return hidden
    return hidden + local_ring(layers, hidden * 0.5, (i + 1) % len(layers), depth - 1)


def nested_ring(depth: int) -> None:
    ring = [rpc.remote(f"worker{r}", Node, (r,)) for r in (0, 1, 2)]
    for r in range(3):
        ring[r].rpc_sync().follow(ring[(r + 1) % 3])
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = ring[0].rpc_sync().forward(x, depth).sum()
        dist_autograd.backward(context_id, [loss])
        found = [node.rpc_sync().gradients(context_id) for node in ring]
        of_x = dist_autograd.get_gradients(context_id)[x]
    y = tensor(X, requires_grad=True)
    layers = tuple(Layer(r) for r in (0, 1, 2))
    local_ring(layers, y, 0, depth).sum().backward()
    assert y.grad is not None
    close(of_x.data, y.grad.data)
    for actual, layer in zip(found, layers, strict=True):
        assert layer.weight.grad is not None
        close(actual, layer.weight.grad.data)
    for node in ring:  # a ring of references would keep itself
        node.rpc_sync().let_go()


def test_nested_calls_that_come_back(cluster: Cluster) -> None:
    cluster.call(0, nested_ring, 3)
    cluster.call(0, nested_ring, 7)


# -- what need not take part -------------------------------------------------------------------


def double(x: Tensor) -> Tensor:
    return x * 2.0


def identity(x: Tensor) -> Tensor:
    return x


def unused_result() -> None:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        rpc.rpc_sync("worker1", double, (x,))
        rpc.rpc_sync("worker2", double, (rpc.rpc_sync("worker1", double, (x,)),))
        used = rpc.rpc_sync("worker1", double, (x,))
        dist_autograd.backward(context_id, [used.sum()])
        close(dist_autograd.get_gradients(context_id)[x].data, np.full_like(X, 2.0))


def test_an_unused_remote_result_does_not_hang(cluster: Cluster) -> None:
    cluster.call(0, unused_result)


def one_of_two_results() -> None:
    layer = rpc.remote("worker1", Layer, (3,))
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        _, tripled = layer.rpc_sync().two(x)
        dist_autograd.backward(context_id, [tripled.sum()])
        found = layer.rpc_sync().gradients(context_id)[0]
    close(found, local_gradient(lambda a: a.two(tensor(X))[1].sum(), 3)[0])


def test_one_of_two_results(cluster: Cluster) -> None:
    cluster.call(0, one_of_two_results)


def add_up(values: list[Tensor], same: Tensor) -> Tensor:
    assert values[0] is same
    return values[0] + values[1] + same


def one_tensor_twice() -> None:
    x, y = tensor(X, requires_grad=True), tensor(X)
    with dist_autograd.context() as context_id:
        total = rpc.rpc_sync("worker1", add_up, ([x, y], x))
        dist_autograd.backward(context_id, [total.sum()])
        found = dist_autograd.get_gradients(context_id)
    close(found[x].data, np.full_like(X, 2.0))
    assert y not in found
    assert x.grad is None


def test_one_tensor_twice_in_a_message_is_one(cluster: Cluster) -> None:
    cluster.call(0, one_tensor_twice)


def to_oneself() -> None:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        y = rpc.rpc_sync(rpc.get_worker_info(), double, (x,))
        assert y is not x
        dist_autograd.backward(context_id, [(y * y).sum()])
        close(dist_autograd.get_gradients(context_id)[x].data, 8 * X)


def test_a_call_to_oneself(cluster: Cluster) -> None:
    cluster.call(0, to_oneself)


def raise_it(x: Tensor) -> Tensor:
    raise ValueError(f"no, {x.shape}")


def after_a_failed_call() -> None:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        with pytest.raises(ValueError, match="no, "):
            rpc.rpc_sync("worker1", raise_it, (x,))
        y = rpc.rpc_sync("worker1", double, (x,))
        dist_autograd.backward(context_id, [y.sum()])
        close(dist_autograd.get_gradients(context_id)[x].data, np.full_like(X, 2.0))


def test_a_call_that_raised_answers_none(cluster: Cluster) -> None:
    cluster.call(0, after_a_failed_call)


def leaf_root() -> None:
    x = tensor(2.0, requires_grad=True)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [x, rpc.rpc_sync("worker1", identity, (x,))])
        assert dist_autograd.get_gradients(context_id)[x].item() == 2.0


def test_a_root_may_be_a_leaf_or_just_received(cluster: Cluster) -> None:
    cluster.call(0, leaf_root)


def hook_in_place() -> None:
    x, y = (tensor(X, requires_grad=True) for _ in range(2))

    def halve(leaf: Tensor, target: Any) -> None:
        gradient = target.get(leaf)
        gradient *= 0.5

    x.register_post_accumulate_hook(halve)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync("worker1", double, (x + y,)).sum()])
        found = dist_autograd.get_gradients(context_id)
    close(found[x].data, np.full_like(X, 1.0))
    close(found[y].data, np.full_like(X, 2.0))


def test_a_hook_may_write_into_the_gradient_that_is_kept(cluster: Cluster) -> None:
    """Both terms of a sum have one gradient, which belonged to neither leaf."""
    cluster.call(0, hook_in_place)


def some_rows(table: Tensor) -> Tensor:
    rows: Tensor = ops.layers.embedding(table, [1, 3, 1], sparse=True)
    return rows


def gradient_of_some_rows() -> None:
    here, sent = tensor(X, requires_grad=True), tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = some_rows(here).sum() + rpc.rpc_sync("worker1", some_rows, (sent,)).sum()
        dist_autograd.backward(context_id, [loss])
        found = dist_autograd.get_gradients(context_id)
    assert here.grad is None
    for table in (here, sent):
        gradient: Any = found[table]
        assert isinstance(gradient, RowSparse)
        assert gradient.rows.tolist() == [1, 3, 1]
        close(gradient.to_dense(), np.array([[0.0], [2.0], [0.0], [1.0], [0.0]]) * np.ones_like(X))


def test_gradients_of_some_rows_stay_rows(cluster: Cluster) -> None:
    """Of a table that is here, and of one that was sent."""
    cluster.call(0, gradient_of_some_rows)


# -- kinds of calls ----------------------------------------------------------------------------


@rpc.functions.async_execution
def double_later(x: Tensor) -> rpc.Future[Tensor]:
    return rpc.rpc_async("worker2", double, (x,))


def kinds_of_calls() -> None:
    layer = rpc.remote("worker1", Layer, (5,))
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        parts = [
            rpc.rpc_async("worker1", double, (x,)).wait(),
            rpc.remote("worker2", double, (x,)).to_here(),
            rpc.rpc_sync("worker1", double_later, (x,)),
            layer.rpc_async().forward(x).wait(),
            layer.rpc_sync().forward_async(x),
            layer.remote().forward(x).to_here(),
        ]
        total = sum(part.sum() for part in parts)
        dist_autograd.backward(context_id, [total])
        found = dist_autograd.get_gradients(context_id)[x].data
    y = tensor(X, requires_grad=True)
    (double(y).sum() * 3 + Layer(5).forward(y).sum() * 3).backward()
    assert y.grad is not None
    close(found, y.grad.data)


def test_every_kind_of_call(cluster: Cluster) -> None:
    cluster.call(0, kinds_of_calls)


def need_of(x: Tensor, y: Tensor) -> tuple[bool, bool]:
    return x.requires_grad, (x * y).requires_grad


def grad_mode_travels() -> None:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        with no_grad():
            assert rpc.rpc_sync("worker1", need_of, (x, x)) == (False, False)
            assert not rpc.rpc_sync("worker1", double, (x,)).requires_grad
        assert rpc.rpc_sync("worker1", need_of, (x, x)) == (True, True)
        dist_autograd.backward(context_id, [rpc.rpc_sync("worker1", double, (x,)).sum()])
    with no_grad():
        assert rpc.rpc_sync("worker1", need_of, (x, x)) == (False, False)


def test_grad_mode_travels_with_a_call(cluster: Cluster) -> None:
    cluster.call(0, grad_mode_travels)


# -- several passes, several contexts -----------------------------------------------------------


def several_passes() -> None:
    layer = rpc.remote("worker1", Layer, (6,))
    with dist_autograd.context() as context_id:
        loss = layer.rpc_sync().forward(tensor(X)).sum()
        once = local_gradient(lambda a: a.forward(tensor(X)).sum(), 6)[0]
        for passes in (1, 2, 3):
            dist_autograd.backward(context_id, [loss], retain_graph=passes < 3)
            close(layer.rpc_sync().gradients(context_id)[0], passes * once)
        with pytest.raises(AutogradError, match="freed"):
            dist_autograd.backward(context_id, [loss])
        close(layer.rpc_sync().gradients(context_id)[0], 3 * once)


def test_passes_add_up_and_a_failed_one_leaves_nothing(cluster: Cluster) -> None:
    cluster.call(0, several_passes)


def new_losses() -> None:
    layer = rpc.remote("worker1", Layer, (6,))
    with dist_autograd.context() as context_id:
        for passes in (1, 2, 3):
            loss = layer.rpc_sync().forward(tensor(X)).sum()
            dist_autograd.backward(context_id, [loss])
            once = local_gradient(lambda a: a.forward(tensor(X)).sum(), 6)[0]
            close(layer.rpc_sync().gradients(context_id)[0], passes * once)


def test_several_losses_in_one_context(cluster: Cluster) -> None:
    cluster.call(0, new_losses)


def concurrent_contexts() -> None:
    layer = rpc.remote("worker1", Layer, (7,))
    agent = current_agent()
    failures: list[BaseException] = []

    def train(scale: float) -> None:
        try:
            with seams.use_agent(agent):
                for _ in range(10):
                    with dist_autograd.context() as context_id:
                        x = tensor(scale * X)
                        dist_autograd.backward(context_id, [layer.rpc_sync().forward(x).sum()])
                        found = layer.rpc_sync().gradients(context_id)[0]
                    close(found, local_gradient(lambda a: a.forward(tensor(scale * X)).sum(), 7)[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(0.1 * i,)) for i in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_contexts_of_several_threads_do_not_mix(cluster: Cluster) -> None:
    cluster.call(0, concurrent_contexts)


def test_all_workers_at_once(cluster: Cluster) -> None:
    cluster.run(split_over_three)


def backward_elsewhere(context_id: int, x: Tensor) -> None:
    dist_autograd.backward(context_id, [(x * x).sum()])


def started_by_a_callee() -> None:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        rpc.rpc_sync("worker1", backward_elsewhere, (context_id, x))
        close(dist_autograd.get_gradients(context_id)[x].data, 2 * X)


def test_backward_may_be_called_by_a_callee(cluster: Cluster) -> None:
    cluster.call(0, started_by_a_callee)


# -- over real processes -------------------------------------------------------------------------


def all_of_it() -> None:
    split_over_two()
    split_over_three()
    nested_ring(4)
    unused_result()
    kinds_of_calls()
    concurrent_contexts()


def test_the_same_over_processes() -> None:
    with Cluster(3, processes=True) as cluster:
        cluster.call(0, all_of_it)
