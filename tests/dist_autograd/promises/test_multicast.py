"""A Tensor that goes to many workers in one gather: encoded once, recorded for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.testing import Cluster
from telegrad.wire import encode


def scaled(x: Tensor) -> Tensor:
    return x * float(1 + rpc.get_worker_info().rank)


def step() -> None:
    x = tensor(np.arange(3.0), requires_grad=True)
    with dist_autograd.context() as context_id:
        calls: list[Any] = [(to, scaled, (x,)) for to in range(3)]
        parts = rpc.gather(calls).wait()
        loss = (parts[0] + parts[1] * 10.0 + parts[2] * 100.0).sum()
        dist_autograd.backward(context_id, [loss])
        (found,) = dist_autograd.get_gradients(context_id).values()
    np.testing.assert_array_equal(found.data, np.full(3, 1.0 + 20.0 + 300.0))


def test_gradients_of_a_multicast_are_those_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def counting(value: object, **named: Any) -> Any:
        if isinstance(value, dict) and "func" in value:
            encoded.append(value)
        return encode(value, **named)

    monkeypatch.setattr("telegrad.rpc.call.codec.encode", counting)
    with Cluster(3) as cluster:
        cluster.call(0, step)
    assert len(encoded) == 1
