"""Stages whose parameters are unfrozen, replaced, added or removed while the pipeline trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import nn, optim, rpc
from telegrad.autograd import Tensor
from telegrad.errors import InvalidUseError
from telegrad.parallel import Pipeline
from telegrad.testing import Cluster
from tests.parallel.pipeline.models import WIDTH, batch

CLUSTER_SIZE = 2


@rpc.expose
class Changing(nn.Module):
    """A stage that a program changes by calls."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=np.float64, rng=np.random.default_rng(seed))
        self.factor = nn.Parameter(np.ones(WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.factor

    def unfreeze(self) -> None:
        self.factor.requires_grad_()

    def freeze(self) -> None:
        self.layer.weight.requires_grad_(False)

    def replace(self) -> None:
        self.layer.weight = nn.Parameter(self.layer.weight.data.copy())

    def add(self) -> None:
        self.layer = nn.Sequential(self.layer)  # type: ignore[assignment]

    def remove(self) -> None:
        self.layer.bias = None


def made() -> tuple[Pipeline, Any]:
    """A pipeline, and a handle on the module of its second stage."""
    there = rpc.remote("worker1", Changing, (1,))
    pipe = Pipeline(
        [("worker0", Changing, (0,)), there],
        num_microbatches=2,
        loss=nn.functional.cross_entropy,
    )
    return pipe, there.rpc_sync()


def change_and_step(change: str) -> tuple[str, bool]:
    """The error of the step after a change, and if a step with a new optimizer works."""
    pipe, stage = made()
    optimizer = pipe.optimizer(optim.SGD, lr=0.1)
    inputs, labels = batch(4)
    pipe.step(inputs, labels)
    optimizer.step()
    getattr(stage, change)()
    words = ""
    try:
        pipe.step(inputs, labels)
        optimizer.step()
    except InvalidUseError as error:
        words = str(error)
    optimizer = pipe.optimizer(optim.SGD, lr=0.1)
    before = pipe.state_dict()
    try:
        pipe.step(inputs, labels)
    except InvalidUseError:
        return words, False
    optimizer.step()
    after = pipe.state_dict()
    trained = {"unfreeze": "1.factor", "freeze": "1.layer.bias", "replace": "1.layer.weight"}
    return words, bool((before[trained[change]] != after[trained[change]]).any())


@pytest.mark.parametrize(
    ("change", "words", "works"),
    [
        ("unfreeze", "parameter 'factor' of stage 1 on worker 'worker1' was unfrozen", True),
        ("replace", "parameter 'layer.weight' of stage 1 on worker 'worker1' was unf", True),
        ("freeze", "", True),
        ("add", "of stage 1 on worker 'worker1' was added or removed", False),
        ("remove", "parameter 'layer.bias' of stage 1 on worker 'worker1' was added", False),
    ],
)
def test_a_parameter_that_no_optimizer_steps_ends_the_step_with_its_name(
    cluster: Cluster, change: str, words: str, works: bool
) -> None:
    """Such a parameter kept its value, in silence."""
    found, went_on = cluster.call(0, change_and_step, change)
    assert words in found
    assert bool(words) == bool(found)
    assert went_on == works


def without_an_optimizer(change: Callable[[Any], object]) -> list[str]:
    pipe, stage = made()
    inputs, labels = batch(4)
    pipe.step(inputs, labels)
    change(stage)
    pipe.step(inputs, labels)
    return list(pipe.gradients())


def test_gradients_alone_follow_the_stage(cluster: Cluster) -> None:
    found = cluster.call(0, without_an_optimizer, lambda stage: stage.unfreeze())
    assert found == ["0.layer.weight", "0.layer.bias", "1.factor", "1.layer.weight", "1.layer.bias"]
