"""Activations that are computed again give the same gradients, random numbers included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import nn, rpc
from telegrad.autograd import Tensor
from telegrad.parallel import Pipeline
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.parallel.pipeline.models import WIDTH, Block, batch, close, reference

M = 3


class Counted(nn.Module):
    """A block with dropout that counts its forwards."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.block, self.dropout = Block(seed), nn.Dropout(0.5)
        self.forwards = 0

    def forward(self, x: Tensor) -> Any:
        self.forwards += 1
        return self.dropout(self.block(x))


class Saving(nn.Module):
    """A block that computes its own activations again, too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.block = Block(seed)

    def forward(self, x: Tensor) -> Any:
        return tg.recompute(self.block, x)


@rpc.expose
def seed(number: int) -> None:
    nn.manual_seed(number)


@rpc.expose
def forwards(stage: rpc.RRef[Counted]) -> int:
    return stage.local_value().forwards


def gradients(recompute: str, schedule: str) -> tuple[float, dict[str, Array], list[int]]:
    stages = [rpc.remote(f"worker{k}", Counted, (k,)) for k in range(2)]
    pipe = Pipeline(
        stages,
        schedule=schedule,
        num_microbatches=M,
        loss=nn.functional.cross_entropy,
        recompute=recompute,
    )
    for k in range(2):
        rpc.rpc_sync(f"worker{k}", seed, (k,))
    loss = pipe.step(*batch(7))
    counts = [rpc.rpc_sync(stage.owner(), forwards, (stage,)) for stage in stages]
    return loss, pipe.gradients(), counts


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.long
def test_masks_are_the_same_when_activations_are_computed_again(schedule: str) -> None:
    with Cluster(2, processes=True) as cluster:
        loss, expected, counts = cluster.call(0, gradients, "never", schedule)
        assert counts == [M, M]
        for recompute, forwards in (("always", 2 * M), ("except_last", 2 * M - 1)):
            found, again, counts = cluster.call(0, gradients, recompute, schedule)
            assert counts == [forwards, forwards]
            assert found == loss
            for name, array in expected.items():
                np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("recompute", ["always", "except_last"])
def test_layers_that_recompute_themselves(schedule: str, recompute: str) -> None:
    model = nn.Sequential(*(Saving(k) for k in range(4)))
    inputs, labels = batch(7)
    expected, gradients = reference(model, inputs, labels)

    def drive() -> None:
        pipe = Pipeline.from_sequential(
            model,
            ["worker0", "worker1"],
            schedule=schedule,
            num_microbatches=M,
            loss=nn.functional.cross_entropy,
            recompute=recompute,
        )
        assert pipe.step(inputs, labels) == pytest.approx(expected, rel=1e-10)
        close(pipe.gradients(), gradients)

    with Cluster(2) as cluster:
        cluster.call(0, drive)


@pytest.mark.few(1)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_running_statistics_count_each_micro_batch_once(schedule: str) -> None:
    inputs, labels = batch(9)

    def state(recompute: str) -> dict[str, Array]:
        norms = [nn.BatchNorm1d(WIDTH, momentum=m, dtype=np.float64) for m in (0.1, None)]
        parts = [Block(0), norms[0], Block(1), nn.Sequential(norms[1], Block(2))]
        pipe = Pipeline.from_sequential(
            nn.Sequential(*parts),
            ["worker0", "worker1"],
            balance=[1, 1, 1, 1] if schedule == "zb-v" else [2, 2],
            schedule=schedule,
            num_microbatches=M,
            loss=nn.functional.cross_entropy,
            recompute=recompute,
        )
        for _ in range(2):
            pipe.step(inputs, labels)
        return pipe.state_dict()

    def drive() -> None:
        expected = state("never")
        assert expected["1.num_batches_tracked"] == 2 * M
        for recompute in ("always", "except_last"):
            found = state(recompute)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, err_msg=name)

    with Cluster(2) as cluster:
        cluster.call(0, drive)
