"""Whoever is there takes part in the next context: who came late, who replaced a lost one, who lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.errors import WorkerLostError
from telegrad.rpc import seams
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.repeated import TRANSPORTS
from tests.rpc.membership_world import World


def through(x: Tensor, names: list[str]) -> Tensor:
    """Doubles on each of these workers, one calling the next."""
    return rpc.rpc_sync(names[0], through, (x * 2.0, names[1:])) if names else x * 2.0


def step(agent: seams.AgentCore, *names: str) -> None:
    """A context of this agent through the others and back is right."""
    x = tensor(np.arange(3.0), requires_grad=True)
    with seams.use_agent(agent), dist_autograd.context() as context_id:
        y = through(x, list(names))
        dist_autograd.backward(context_id, [(y * x).sum()])
        found = dist_autograd.get_gradients(context_id)[x].data
    np.testing.assert_allclose(found, 2.0 * x.data * 2.0 ** (len(names) + 1))


@pytest.fixture(params=TRANSPORTS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param, 2)
    yield world
    world.close()


def knows(agent: seams.AgentCore, name: str) -> None:
    """Waits until a worker has heard of another."""
    with seams.use_agent(agent):
        wait_until_gone(
            "strangers",
            lambda: [] if name in [info.name for info in rpc.get_worker_infos()] else [name],
        )


def test_a_worker_that_joined_late(world: World) -> None:
    first, second = world.join_all()
    step(first, "w1")
    late = world.join(2, late=True)
    for agent in (first, second):
        knows(agent, "w2")
    step(first, "w1", "w2", "w0")
    step(late, "w0", "w1", "w2")
    step(second, "w2")


def test_a_worker_that_replaced_a_lost_one(world: World) -> None:
    first, second = world.join_all()
    with seams.use_agent(first), dist_autograd.context() as context_id:
        x = tensor(np.ones(3), requires_grad=True)
        loss = rpc.rpc_sync("w1", through, (x, [])).sum()
        world.kill(second)
        with pytest.raises(WorkerLostError, match="'w1'"):
            dist_autograd.backward(context_id, [loss])
        assert dist_autograd.get_gradients(context_id) == {}
    world.wait_until_dropped("w1")
    replaced = world.join(1)
    knows(first, "w1")
    step(first, "w1", "w0", "w1")
    step(replaced, "w0")


# -- a worker that is killed in the middle ----------------------------------------------------------

reached, go_on = threading.Event(), threading.Event()


class Keeps:
    """Owns a leaf, and holds the gradient of what it returns when it is told to."""

    def __init__(self) -> None:
        self.weight = tensor(np.full(3, 2.0), requires_grad=True)

    def forward(self, x: Tensor, holds: bool) -> Tensor:
        y = x * self.weight
        if holds:
            y.register_hook(held_up)
        return y * 1.0

    def gradient(self, context_id: int) -> Any:
        found = dist_autograd.get_gradients(context_id).get(self.weight)
        return None if found is None else found.data


def held_up(gradient: Tensor) -> None:
    reached.set()
    go_on.wait(60.0)


def is_held() -> None:
    assert reached.wait(40.0)


def loses_one() -> None:
    """worker2 is killed while it computes for worker1, which waits for it."""
    one, two = (rpc.remote(r, Keeps) for r in (1, 2))
    x = tensor(np.arange(1.0, 4.0), requires_grad=True)
    with dist_autograd.context() as context_id:
        early = one.rpc_sync().forward(x, False).sum()
        dist_autograd.backward(context_id, [early])

        def kept() -> list[Any]:
            own = dist_autograd.get_gradients(context_id)[x].data
            return [own, one.rpc_sync().gradient(context_id)]

        before = kept()
        np.testing.assert_array_equal(before[0], np.full(3, 2.0))
        y = one.rpc_sync().forward(x, False)
        loss = (two.rpc_sync().forward(y, True) * y).sum()
        with pytest.raises(WorkerLostError, match="'worker2'") as caught:
            dist_autograd.backward(context_id, [loss])
        assert "repeat the step in a new context, without that worker" in caught.value.__notes__[-1]
        for now, then in zip(kept(), before, strict=True):
            np.testing.assert_array_equal(now, then)
        again = (one.rpc_sync().forward(x, False) * 3.0).sum()
        dist_autograd.backward(context_id, [again])  # in the same context, without that worker
        np.testing.assert_array_equal(kept()[0], before[0] + 6.0)
    step(current_agent(), "worker1", "worker0", "worker1")


@pytest.mark.parametrize(
    "processes", [False, pytest.param(True, marks=pytest.mark.long)], ids=["here", "processes"]
)
def test_survivors_keep_their_gradients_and_the_next_step_works(processes: bool) -> None:
    reached.clear()
    go_on.clear()
    with Cluster(3, processes=processes) as cluster, ThreadPoolExecutor(1) as pool:
        steps = pool.submit(cluster.call, 0, loses_one)
        try:
            cluster.call(2, is_held)
            cluster.kill(2)
            steps.result()
        finally:
            go_on.set()
