"""Pains of users: calls that never time out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import dist_autograd, rpc
from telegrad.autograd import tensor
from telegrad.errors import (
    CallTimeoutError,
)
from telegrad.parallel import DistributedOptimizer
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.pains import remote_code
from tests.pains.remote_code import doors, hold


def never_ending(to: str) -> dict[str, str]:
    """Each verb with a time-out of its own, on something that does not end; what each says."""
    rref = rpc.remote(to, hold, timeout=0.1)
    slow = rpc.RRef(Slow())
    verbs: dict[str, Callable[[], object]] = {
        "rpc_sync": lambda: rpc.rpc_sync(to, hold, timeout=0.1),
        "rpc_async": lambda: rpc.rpc_async(to, hold, timeout=0.1).wait(),
        "remote": lambda: fetch_once_failed(rref),
        "proxy": lambda: slow.rpc_sync(timeout=0.1).hold(),
        "wait": lambda: rpc.rpc_async(to, hold, timeout=20.0).wait(timeout=0.1),
        "gather": lambda: rpc.gather([(to, hold)], timeout=0.1).wait(),
        "stream": lambda: next(rpc.stream(to, remote_code.held_items, timeout=0.1)),
        "lookup": lambda: rpc.lookup(to, "what nobody publishes", timeout=0.1),
        "backward": lambda: backward_through(to, 0.1),
        "step": lambda: step_at(to, 0.1),
        "a collective": lambda: dist.barrier(timeout=0.1),
    }
    words = {}
    for name, verb in verbs.items():
        with pytest.raises(CallTimeoutError) as info:
            verb()
        words[name] = str(info.value)
        assert info.value.elapsed > 0.0, name
        assert info.value.phase, name
    return words


def backward_through(to: str, seconds: float) -> None:
    x = tensor(np.ones(3), requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(to, remote_code.held_backwards, (x,)).sum()
        dist_autograd.backward(context_id, [loss], timeout=seconds)


def step_at(to: str, seconds: float) -> None:
    weight = rpc.remote(to, remote_code.Weight)
    optimizer = DistributedOptimizer(remote_code.HeldOptimizer, [weight.rpc_sync().parameter()])
    with dist_autograd.context() as context_id:
        loss = weight.rpc_sync().forward(tensor(np.ones(3))).sum()
        dist_autograd.backward(context_id, [loss])
        optimizer.step(context_id, timeout=seconds)


def fetch_once_failed(rref: rpc.RRef[str]) -> str:
    wait_until_gone("creations", lambda: [] if "failed" in repr(rref) else [rref])
    return rref.to_here(timeout=0.2)


class Slow:
    """Its method does not end by itself."""

    def hold(self) -> str:
        return hold()


def test_pain_20_timeouts_are_missing_and_the_callee_never_hears() -> None:
    doors.begin()
    try:
        with Cluster(2) as cluster:
            cluster.run(dist.init_process_group)
            words = cluster.call(0, never_ending, "worker1")
            of_the_function = ("rpc_sync", "rpc_async", "remote", "proxy", "wait", "gather")
            assert all("hold" in words[name] for name in of_the_function), words
            assert "held_items" in words["stream"]
            assert "what nobody publishes" in words["lookup"]
            assert "backward" in words["backward"]
            assert "step" in words["step"]
            assert "rank 1" in words["a collective"]
            doors.open.set()
    finally:
        doors.open.set()
