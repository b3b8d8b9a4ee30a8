"""Stages without anything to train: layers without parameters, frozen ones, a frozen backbone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from telegrad import nn, optim, rpc
from telegrad.autograd import Function, Tensor
from telegrad.errors import InvalidUseError, PipelineError
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline import Pop, Stash
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.parallel.pipeline.models import (
    SCHEDULES,
    WIDTH,
    Block,
    batch,
    close,
    layer,
    left_behind,
    reference,
)

CLUSTER_SIZE = 4
LOSS = nn.functional.cross_entropy
M = 3


def layers(kinds: str) -> nn.Sequential:
    """One layer for each word; `out` and `in` are the ends of a skip connection."""
    ends: dict[str, Callable[[], nn.Module]] = {
        "out": lambda: Stash("past"),
        "in": lambda: Pop("past"),
        "flat": nn.Flatten,
    }
    named = [
        ends[kind]() if kind in ends else layer(kind, k) for k, kind in enumerate(kinds.split())
    ]
    return nn.Sequential(*named)


def words(*, frozen: bool) -> nn.Sequential:
    table = nn.Embedding(9, WIDTH, dtype=np.float64, rng=np.random.default_rng(0))
    table.weight.requires_grad = not frozen
    return nn.Sequential(table, nn.Tanh(), Block(1), nn.Identity())


FORMS: dict[str, Callable[[], nn.Sequential]] = {
    "activations alone": partial(layers, "trained tanh trained tanh"),
    "an identity in the middle": partial(layers, "trained identity frozen trained"),
    "a layer that flattens": partial(layers, "flat trained tanh trained"),
    "frozen first": partial(layers, "frozen frozen trained trained"),
    "frozen in the middle": partial(layers, "trained frozen tanh trained"),
    "frozen last": partial(layers, "trained frozen tanh frozen"),
    "a frozen backbone": partial(layers, "frozen tanh frozen trained"),
    "one trained layer in front": partial(layers, "trained identity tanh identity"),
    "a frozen skip connection": partial(layers, "out frozen in trained"),
    "a skip connection past frozen ones": partial(layers, "trained out frozen in"),
    "a frozen embedding": partial(words, frozen=True),
    "an embedding": partial(words, frozen=False),
}


def inputs_for(model: nn.Sequential) -> tuple[Array, Array]:
    inputs, labels = batch(8)
    return (labels if isinstance(model[0], nn.Embedding) else inputs), labels


def same_as_whole(form: str, schedule: str, balance: Any, recompute: str) -> None:
    model = FORMS[form]()
    chunks = 2 if schedule in ("interleaved", "zb-v") else 1
    workers = [f"worker{r}" for r in range(4 // chunks)]
    given = inputs_for(model)
    pipe = Pipeline.from_sequential(
        model,
        workers,
        balance=balance,
        schedule=schedule,
        num_microbatches=M,
        loss=LOSS,
        recompute=recompute,
    )
    own = optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.01)
    optimizer = pipe.optimizer(optim.Adam, lr=0.01, max_norm=0.5)
    for _ in range(3):  # the later ones are replays
        loss, gradients = reference(model, *given)
        assert pipe.step(*given) == pytest.approx(loss, rel=1e-10), form
        close(pipe.gradients(), gradients)
        nn.utils.clip_grad_norm_([each for each in model.parameters() if each.requires_grad], 0.5)
        own.step()
        optimizer.step()
    close(pipe.state_dict(), model.state_dict())
    np.testing.assert_allclose(pipe.forward(given[0]).data, model(given[0]).data, rtol=1e-10)
    assert not left_behind()


def all_forms(schedule: str) -> None:
    balances = ["parameters", "time", [1, 1, 1, 1]]  # one layer for each stage, each of them
    for k, form in enumerate(FORMS):
        same_as_whole(form, schedule, balances[k % 3], "always" if k % 2 else "never")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.long
def test_each_form_is_trained_as_the_whole_model(cluster: Cluster, schedule: str) -> None:
    cluster.call(0, all_forms, schedule)


# -- nothing at all --------------------------------------------------------------------------------


def train_nothing(schedule: str) -> None:
    homes = {"interleaved": [0, 1, 0, 1], "zb-v": [0, 1, 1, 0]}.get(schedule, [0, 1])
    frozen = Block(0).requires_grad_(False)
    stages: list[Any] = [rpc.RRef(frozen), *((f"worker{home}", nn.Tanh, ()) for home in homes[1:])]
    pipe = Pipeline(stages, schedule=schedule, num_microbatches=2, loss=LOSS)
    inputs, labels = batch(4)
    assert pipe.forward(inputs).shape == (4, WIDTH)
    for _ in range(2):
        with pytest.raises(InvalidUseError, match="has nothing to train"):
            pipe.step(inputs, labels)
        assert not left_behind()
    with pytest.raises(ValueError, match="at least one parameter"):
        pipe.optimizer(optim.SGD, lr=0.1)
    frozen.requires_grad_(True)
    pipe.step(inputs, labels)
    assert list(pipe.gradients()) == ["0.linear.weight", "0.linear.bias"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_only_a_step_needs_something_to_train(cluster: Cluster, schedule: str) -> None:
    cluster.call(0, train_nothing, schedule)


# -- what they cost, and what they lose --------------------------------------------------------------


class Passed(Function):
    """Passes its input on, and counts the backwards."""

    count = 0

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        Passed.count += 1
        return gradient


class Passing(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Passed.apply(x)


def count_backwards(schedule: str) -> list[int]:
    found = []
    for first in ("frozen", "trained"):
        Passed.count = 0
        model = nn.Sequential(layer(first, 0), Stash("past"), Passing(), Block(1), Pop("past"))
        workers = [f"worker{r}" for r in range(3)]
        pipe = Pipeline.from_sequential(
            model, workers, balance=[2, 1, 2], schedule=schedule, num_microbatches=M, loss=LOSS
        )
        for _ in range(2):
            pipe.step(*batch(6))
        found.append(Passed.count)
    return found


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_no_backward_runs_before_the_first_stage_that_is_trained(
    cluster: Cluster, schedule: str
) -> None:
    assert cluster.call(0, count_backwards, schedule) == [0, 2 * M]


def lose_one(cluster: Cluster, rank: int) -> None:
    model = layers("trained tanh trained")
    own = optim.Adam(model.parameters(), lr=0.01)
    pipe = Pipeline.from_sequential(
        model,
        ["worker1", "worker2", "worker3"],
        balance=[1, 1, 1],
        num_microbatches=M,
        loss=LOSS,
        keep_copies=True,
    )
    optimizer = pipe.optimizer(optim.Adam, lr=0.01)

    def train() -> None:
        for _ in range(2):
            loss, _ = reference(model, *batch(6))
            own.step()
            assert pipe.step(*batch(6)) == pytest.approx(loss, rel=1e-10)
            optimizer.step()

    train()
    cluster.kill(rank)
    with pytest.raises(PipelineError, match="is lost"):
        pipe.step(*batch(6))
    pipe.replace(rank - 1, "worker0")
    train()
    close(pipe.state_dict(), model.state_dict())


@pytest.mark.long
@pytest.mark.parametrize("rank", [1, 2])
def test_a_stage_without_parameters_and_its_neighbour_are_replaced(
    cluster: Cluster, rank: int
) -> None:
    cluster.call(0, lose_one, cluster, rank)


def share() -> None:
    model = layers("frozen tanh trained")
    loss, gradients = reference(model, *batch(7))
    workers = ["worker0", ["worker1", "worker2"], "worker3"]
    pipe = Pipeline.from_sequential(
        model, workers, balance=[1, 1, 1], num_microbatches=M, loss=LOSS
    )
    assert pipe.step(*batch(7)) == pytest.approx(loss, rel=1e-10)
    close(pipe.gradients(), gradients)


def test_several_workers_share_a_stage_without_parameters(cluster: Cluster) -> None:
    cluster.call(0, share)
