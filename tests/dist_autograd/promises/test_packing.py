"""Saved values that are packed on each of several workers, in one backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.autograd import tensor
from telegrad.errors import AutogradError
from telegrad.testing import Cluster

CLUSTER_SIZE = 2
RNG = np.random.default_rng(4)
W, X = RNG.normal(size=(3, 3)), RNG.normal(size=(2, 3))


class Block:
    """Lives on one worker and packs what it saves; counts what was packed and unpacked."""

    def __init__(self) -> None:
        self.weight = tensor(W, requires_grad=True)
        self.counts = [0, 0]

    def pack(self, array: Any) -> Any:
        self.counts[0] += 1
        return array.tolist()

    def unpack(self, token: Any) -> Any:
        self.counts[1] += 1
        return np.array(token)

    def packed(self, x: Any) -> Any:
        with tg.saved_values(self.pack, self.unpack):
            return self.compute(x)

    def compute(self, x: Any) -> Any:
        return np.tanh(x @ self.weight) * x

    def gradient(self, context_id: int) -> Any:
        return dist_autograd.get_gradients(context_id)[self.weight].data, self.counts


def split() -> None:
    there, here = rpc.remote("worker1", Block), Block()
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        with tg.saved_values(here.pack, here.unpack):
            h = here.compute(x * 1.0)
            returned = there.rpc_sync().packed(h)  # the caller's block is not that of the callee
            again = there.rpc_sync().compute(returned)
            y = here.compute(again)
            loss = (y * y).sum()
        dist_autograd.backward(context_id, [loss])
        found = [dist_autograd.get_gradients(context_id)[t].data for t in (x, here.weight)]
        of_there, counts = there.rpc_sync().gradient(context_id)
    assert counts == [4, 4], "x twice, the result of tanh twice: of one call in a block, not of two"
    assert here.counts == [10, 10]

    a, b = Block(), Block()
    leaf = tensor(X, requires_grad=True)
    y = a.compute(b.compute(b.compute(a.compute(leaf))))
    expected = tg.grad((y * y).sum(), [leaf, a.weight, b.weight])
    for one, other in zip([*found, of_there], expected, strict=True):
        np.testing.assert_allclose(one, other.data, rtol=1e-10)


def test_each_worker_packs_what_its_own_blocks_record(cluster: Cluster) -> None:
    cluster.call(0, split)


def second_order() -> None:
    there = rpc.remote("worker1", Block)
    results = []
    for name in ("packed", "compute"):
        x = tensor(X, requires_grad=True)
        with dist_autograd.context() as context_id:
            y = getattr(there.rpc_sync(), name)(x * 2.0)
            (first,) = dist_autograd.grad(context_id, [y.sum()], [x], create_graph=True)
            (second,) = dist_autograd.grad(context_id, [(first * first).sum()], [x])
        results.append((first.data, second.data))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_gradients_of_gradients_through_values_that_another_worker_packed(cluster: Cluster) -> None:
    cluster.call(0, second_order)


class Wrong(Block):
    """Unpacks its values with their axes in another order."""

    def unpack(self, token: Any) -> Any:
        return super().unpack(token).T


def wrong() -> None:
    there = rpc.remote("worker1", Wrong)
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        y = there.rpc_sync().packed(x * 2.0)
        with pytest.raises(AutogradError, match="'multiply' saved") as caught:
            dist_autograd.backward(context_id, [y.sum()])
    assert "unpack returned float64 of shape (3, 2) on cpu" in str(caught.value)


def test_another_workers_unpack_that_returns_another_shape(cluster: Cluster) -> None:
    cluster.call(0, wrong)
