"""The starter of a pass that the job gave up meanwhile: it hears of that, whatever peers say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.dist_autograd.container import Container
from telegrad.errors import EvictedError, NotInitializedError
from telegrad.rpc import seams
from telegrad.testing import leaks
from tests.repeated import TRANSPORTS
from tests.rpc.membership_world import LIMIT, World


class Gates:
    """Where the gradient is held up."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()


gates: dict[str, Gates] = {}


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.node.nodeid)
    gates[name] = Gates()
    yield name
    gates.pop(name).go_on.set()


@pytest.fixture(params=TRANSPORTS)
def world(request: pytest.FixtureRequest, name: str) -> Iterator[World]:
    world = World(request.param, 3)
    yield world
    gates[name].go_on.set()
    world.close()


def double(x: Tensor) -> Tensor:
    return x * 2.0


def holds_backwards(x: Tensor, name: str, following: str) -> Tensor:
    """Computes on the next worker too; its own gradient is held up until the test says."""

    def hook(gradient: Tensor) -> None:
        gates[name].reached.set()
        assert gates[name].go_on.wait(30)

    y = rpc.rpc_sync(following, double, (x * 3.0,))
    y.register_hook(hook)
    return y * 1.0


contexts: list[int] = []


def pass_of(agent: seams.AgentCore, name: str, root: Callable[[Tensor], Any]) -> None:
    """Runs backward w0 ─▶ w1, which holds it, ─▶ w2; from what `root` makes of the loss."""
    with seams.use_agent(agent), dist_autograd.context() as context_id:
        contexts.append(context_id)
        x = tensor(np.ones(3), requires_grad=True)
        loss = rpc.rpc_sync("w1", holds_backwards, (x, name, "w2")).sum()
        try:
            dist_autograd.backward(context_id, [root(loss)])
        finally:
            assert dist_autograd.get_gradients(context_id) == {}


def running(agent: seams.AgentCore) -> list[object]:
    """The passes of a worker that are not aborted."""
    container = agent.attachments[Container]
    found = [context for each in contexts if (context := container.get(each)) is not None]
    runners = [each for context in found for each in container.passes(context)]
    return [each for each in runners if each.running or each.gradients.complete]


def itself(loss: Tensor) -> Tensor:
    return loss


@pytest.mark.parametrize("root", [itself, rpc.RRef])
def test_the_starter_hears_of_its_eviction_and_not_that_it_is_lost(
    world: World, name: str, root: Callable[[Tensor], Any]
) -> None:
    """One worker gives it up, tells another, and that one the starter, before anybody else does."""
    first, second, _ = world.join_all()
    ended = world.submit(pass_of, first, name, root)
    assert gates[name].reached.wait(LIMIT)
    world.network.partition("w0", "coordinator")
    second.exchange.fence(first.info, "silent for longer than a test would wait")
    leaks.wait_until_gone("passes that go on", lambda: running(first))
    assert not ended.done()
    world.drop(first)
    world.network.heal()
    with pytest.raises(EvictedError, match="gave up 'w0'"):
        ended.result(LIMIT)


def test_a_starter_that_leaves_at_once_hears_of_that_alone(world: World, name: str) -> None:
    """Those who give it up then say so to each other, and perhaps to the one who leaves."""
    first, _, _ = world.join_all()
    ended = world.submit(pass_of, first, name, itself)
    assert gates[name].reached.wait(LIMIT)
    first.shutdown(graceful=False)
    with pytest.raises(NotInitializedError, match="'w0' was shut down"):
        ended.result(LIMIT)
