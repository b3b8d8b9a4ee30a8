"""Distributed gradients equal local ones: the same program on one worker and on several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, is_grad_enabled, no_grad, tensor
from telegrad.errors import AutogradError
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.dist_autograd.layers import Layer, X

RELATIVE = 1e-10


def local_gradient(program: Callable[..., Tensor], *seeds: int) -> list[Array]:
    layers = [Layer(seed) for seed in seeds]
    program(*layers).backward()
    return [layer.weight.grad.data for layer in layers if layer.weight.grad is not None]


def close(actual: Array | None, expected: Array) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual, expected, rtol=RELATIVE)


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


def own_pass() -> Array:
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [(x * 3.0).sum()])
        return dist_autograd.get_gradients(context_id)[x].data


def test_a_served_call_may_begin_a_pass_before_it_calls_or_waits(cluster: Cluster) -> None:
    close(cluster.call(0, rpc.rpc_sync, "worker1", own_pass), np.full_like(X, 3.0))


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


# -- grad mode ---------------------------------------------------------------------------------


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


def test_grad_mode_in_a_stream(cluster: Cluster) -> None:
    cluster.call(0, read_modes)


# -- several passes -------------------------------------------------------------------------------


def several_passes() -> None:
    layer = rpc.remote("worker1", Layer, (6,))
    with dist_autograd.context() as context_id:
        loss = layer.rpc_sync().forward(tensor(X)).sum()
        once = local_gradient(lambda a: a.forward(tensor(X)).sum(), 6)[0]
        for passes in (1, 2, 3):
            dist_autograd.backward(context_id, [loss], retain_graph=passes < 3)
            close(layer.rpc_sync().gradient(context_id), passes * once)
        with pytest.raises(AutogradError, match="freed"):
            dist_autograd.backward(context_id, [loss])
        close(layer.rpc_sync().gradient(context_id), 3 * once)


def test_passes_add_up_and_a_failed_one_leaves_nothing(cluster: Cluster) -> None:
    cluster.call(0, several_passes)
