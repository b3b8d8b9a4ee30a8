"""Holds the language model of characters to the same model in one process, and to what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from examples import character_pipeline as example
from telegrad import nn, optim, rpc
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.conftest import Programs

STEPS = 3


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"BATCH": 10, "MICRO_BATCHES": 4, "LENGTH": 8, "WIDTH": 12}
    for name, value in small.items():
        monkeypatch.setattr(example, name, value)


def some_text() -> example.Symbols:
    return example.encode("so many words, and every one of them is said again. " * 9)


def train_on_workers() -> tuple[list[float], dict[str, Array], str]:
    pipe = example.make_pipeline([info.name for info in rpc.get_worker_infos()])
    optimizer = pipe.optimizer(optim.Adam, lr=example.LEARNING_RATE, max_norm=example.MAX_NORM)
    text, rng = some_text(), np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        losses.append(pipe.step(*example.draw_batch(text, rng)))
        optimizer.step()
    return losses, pipe.state_dict(), example.write(pipe, "so ", 12)


@pytest.mark.usefixtures("_small")
def test_four_stages_learn_what_the_model_would_in_one_process() -> None:
    with Cluster(4) as cluster:
        losses, state, written = cluster.call(0, train_on_workers)
    model = example.make_model()
    optimizer = optim.Adam(model.parameters(), lr=example.LEARNING_RATE)
    text, rng = some_text(), np.random.default_rng(0)
    for found in losses:
        pieces, following = example.draw_batch(text, rng)
        loss = example.cross_entropy(model(pieces), following)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(list(model.parameters()), example.MAX_NORM)
        optimizer.step()
        np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
    assert state.keys() == model.state_dict().keys()
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(state[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    assert written.startswith("so ")
    assert len(written) == 15


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_example_learns_to_write(programs: Programs, tmp_path: Path) -> None:
    picture = tmp_path / "step.svg"
    command = ["telegrad", "run", "--nproc-per-node", "4", "examples/character_pipeline.py"]
    output = programs.run([*command, "--picture", picture], limit=280.0)
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", output)]
    assert losses[0] > 4.0
    assert losses[-1] < 1.7
    assert "it writes:\n" in output
    assert picture.read_text().startswith("<svg")
    assert "warning" not in output.lower()
