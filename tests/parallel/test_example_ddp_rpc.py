"""Runs the example of a table behind calls and dense layers in DDP, and compares its gradients."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import ddp_rpc
from examples.ddp_rpc import Table, Text, Trainer
from telegrad import collectives as dist
from telegrad import dist_autograd, rpc
from telegrad.autograd import is_row_sparse
from telegrad.nn import functional
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.conftest import Programs

LAUNCH = ["telegrad", "run", "--nproc-per-node"]
TRAINERS = 2


SHORT = """
from examples import ddp_rpc

ddp_rpc.EPOCHS = {epochs}

if __name__ == "__main__":
    ddp_rpc.main()
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("epochs", [1, pytest.param(None, marks=pytest.mark.long)])
def test_the_trainers_learn_which_page_a_line_is_from(
    programs: Programs, epochs: int | None
) -> None:
    program: Path | str = "examples/ddp_rpc.py"
    if epochs is not None:
        program = programs.script(SHORT.format(epochs=epochs))
    output = programs.run([*LAUNCH, "3", program], limit=80.0)
    found = re.search(r"test accuracy: (\d+\.\d) % +always the longest page: (\d+\.\d) %", output)
    assert found is not None, output
    accuracy, always_the_longest = map(float, found.groups())
    assert accuracy >= always_the_longest + 25.0
    assert "dense layers bitwise equal on all trainers: yes" in output
    assert "warning" not in output.lower()


def some_lines() -> Text:
    return ddp_rpc.load_data()[0].part(np.arange(TRAINERS * ddp_rpc.BATCH))


def gradient_of_table(context_id: int, table: rpc.RRef[Table]) -> tuple[bool, Array]:
    gradient: Any = dist_autograd.get_gradients(context_id)[table.local_value().vectors.weight]
    return is_row_sparse(gradient), gradient.to_dense() if is_row_sparse(
        gradient
    ) else gradient.data


def gradients_of_a_trainer() -> tuple[list[Array], bool, Array] | None:
    rank = rpc.get_worker_info().rank
    if rank == 0:
        rpc.publish(ddp_rpc.NAME, Table(ddp_rpc.ROWS))
        return None
    group = dist.new_group(range(1, TRAINERS + 1))
    table = rpc.lookup(0, ddp_rpc.NAME)
    trainer = Trainer(table, group)
    mine = some_lines().part(np.arange(rank - 1, TRAINERS * ddp_rpc.BATCH, TRAINERS))
    with dist_autograd.context() as context_id:
        loss = functional.cross_entropy(trainer.logits(mine.lines), mine.pages)
        dist_autograd.backward(context_id, [loss])
        found = dist_autograd.get_gradients(context_id)
        dense = [found[parameter].data for parameter in trainer.layers.parameters()]
        return dense, *rpc.rpc_sync(0, gradient_of_table, (context_id, table))


def test_one_backward_averages_the_layers_and_leaves_rows_at_the_table() -> None:
    with Cluster(1 + TRAINERS) as cluster:
        _, *trainers = cluster.run(gradients_of_a_trainer)
    table, layers, text = Table(ddp_rpc.ROWS), ddp_rpc.make_layers(seed=0), some_lines()
    functional.cross_entropy(layers(table(text.lines)), text.pages).backward()
    rows: Any = table.vectors.weight.grad
    found = [trainer for trainer in trainers if trainer is not None]
    assert [sparse for _, sparse, _ in found] == [True] * TRAINERS
    mean = sum(gradient for *_, gradient in found) / TRAINERS
    np.testing.assert_allclose(mean, rows.to_dense(), rtol=1e-4, atol=1e-7)
    for dense, *_ in found:
        for actual, parameter in zip(dense, layers.parameters(), strict=True):
            assert parameter.grad is not None
            np.testing.assert_allclose(actual, parameter.grad.data, rtol=1e-4, atol=1e-6)
