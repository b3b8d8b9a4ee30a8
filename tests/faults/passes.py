"""Backward passes that the tests break in the middle: a gradient is announced and held up."""

from __future__ import annotations

import numpy as np

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import double, hold, vector


class Layer:
    """A leaf on its worker; what it computes may go on to another worker."""

    def __init__(self) -> None:
        self.leaf = tensor(np.ones(3), requires_grad=True)

    def forward(self, x: Tensor, following: rpc.RRef[Layer] | None) -> Tensor:
        y = x * self.leaf
        return y if following is None else following.rpc_sync().forward(y, None)

    def gradients(self, context_id: int) -> int:
        return len(dist_autograd.get_gradients(context_id))


def holds_backwards(x: Tensor, name: str, following: rpc.RRef[Layer]) -> Tensor:
    """Computes on the next worker too; backwards it stops until `name` is released."""

    def hook(gradient: Tensor) -> None:
        hold(name)

    y = following.rpc_sync().forward(x * 3.0, None)
    y.register_hook(hook)
    return y * 1.0


def broken_pass(held: str, third: str, name: str) -> Failure:
    """Runs backward over two workers, of which one is to be lost; the third must not notice.

        this worker ──▶ third ──▶ held ──▶ third
             └────────────────────▲

    Args:
        held: The worker that stops in the middle, until it is killed.
        third: A worker behind it and before it.
        name: Where it stops.
    """
    x = vector()
    with dist_autograd.context() as context_id:
        layer = rpc.remote(third, Layer)
        y = layer.rpc_sync().forward(x, None)
        loss = rpc.rpc_sync(held, holds_backwards, (y, name, layer)).sum()
        loss = loss + y.sum() + rpc.rpc_sync(held, double, (x,)).sum()
        failure = failure_of(lambda: dist_autograd.backward(context_id, [loss]))
        assert dist_autograd.get_gradients(context_id) == {}, "gradients of a broken pass"
        assert layer.rpc_sync().gradients(context_id) == 0, "gradients of a broken pass there"
        # The context itself is whole: what does not need the lost worker goes on in it.
        again = layer.rpc_sync().forward(x, None).sum()
        dist_autograd.backward(context_id, [again], timeout=20.0)
        assert dist_autograd.get_gradients(context_id)[x].data.tolist() == [1.0] * 3
        assert layer.rpc_sync().gradients(context_id) == 1
    return failure
