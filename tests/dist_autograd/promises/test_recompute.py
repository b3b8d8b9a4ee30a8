"""Checkpoints in a backward over several workers: parts computed again on each of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.autograd import tensor
from telegrad.testing import Cluster

CLUSTER_SIZE = 2
RNG = np.random.default_rng(4)
W, X = RNG.normal(size=(3, 3)), RNG.normal(size=(2, 3))


class Block:
    """Lives on one worker and keeps no values in between."""

    def __init__(self) -> None:
        self.weight = tensor(W, requires_grad=True)
        self.runs = 0

    def forward(self, x: Any) -> Any:
        return tg.recompute(self.compute, x)

    def compute(self, x: Any) -> Any:
        self.runs += 1
        return np.tanh(x @ self.weight) * x

    def gradient(self, context_id: int) -> Any:
        return dist_autograd.get_gradients(context_id)[self.weight].data, self.runs


def split() -> None:
    there, here = rpc.remote("worker1", Block), Block()
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        y = here.forward(there.rpc_sync().forward(here.forward(x)))
        dist_autograd.backward(context_id, [(y * y).sum()])
        found = [dist_autograd.get_gradients(context_id)[t].data for t in (x, here.weight)]
        of_there, runs = there.rpc_sync().gradient(context_id)
    assert (runs, here.runs) == (2, 4)

    a, b = Block(), Block()
    leaf = tensor(X, requires_grad=True)
    y = a.compute(b.compute(a.compute(leaf)))
    expected = tg.grad((y * y).sum(), [leaf, a.weight, b.weight])
    for one, other in zip([*found, of_there], expected, strict=True):
        np.testing.assert_allclose(one, other.data, rtol=1e-10)


def test_parts_on_two_workers_arecomputed_again(cluster: Cluster) -> None:
    cluster.call(0, split)
