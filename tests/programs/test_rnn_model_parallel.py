"""Holds the recurrent example to the same model in one process, and to what it prints."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from examples import rnn_model_parallel as example
from telegrad import nn, optim, rpc
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.conftest import Programs

LAUNCH = ["telegrad", "run", "--nproc-per-node"]
STEPS = 3


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"BATCH": 8, "LENGTH": 10, "EMBEDDING": 6, "HIDDEN": 12}
    for name, value in small.items():
        monkeypatch.setattr(example, name, value)


class Local(nn.Module):
    """The same model with all of its layers here."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, example.EMBEDDING)
        self.lstm = nn.LSTM(example.EMBEDDING, example.HIDDEN, batch_first=True)
        self.decoder = nn.Linear(example.HIDDEN, characters)

    def forward(self, symbols: example.Symbols, state: example.State | None) -> tuple[Any, Any]:
        vectors, (h, c) = self.lstm(self.embedding(symbols), state)
        return self.decoder(vectors), (h.data, c.data)


def some_text() -> example.Text:
    return example.Text("so many words, and every one of them is said again. " * 9)


def train_on_workers() -> tuple[list[str], dict[str, Array], list[float], dict[str, Array]]:
    """Returns the owners of the layers, the first state, the losses and the last state."""
    text = some_text()
    _, outer, inner = rpc.get_worker_infos()
    model = example.CharacterModel(len(text.characters), outer, inner)
    parts = (model.embedding, model.lstm, model.decoder)
    owners = [part.get_module_rref().owner_name() for part in parts]
    first = model.state_dict()
    training = example.Training(model)
    pieces = itertools.islice(example.batches(text.training), STEPS)
    losses = [training.step(*piece) for piece in pieces]
    return owners, first, losses, model.state_dict()


@pytest.mark.usefixtures("_small")
def test_the_split_model_learns_what_it_would_in_one_process() -> None:
    with Cluster(3) as cluster:
        owners, first, losses, last = cluster.call(0, train_on_workers)
    assert owners == ["worker1", "worker2", "worker1"]
    text = some_text()
    model = Local(len(text.characters))
    model.load_state_dict(first)
    optimizer = optim.Adam(model.parameters(), lr=example.LEARNING_RATE)
    state = None
    for loss, (symbols, following, starts) in zip(
        losses, example.batches(text.training), strict=False
    ):
        logits, state = model(symbols, None if starts else state)
        expected = example.cross_entropy(logits, following)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    assert last.keys() == model.state_dict().keys()
    for name, array in model.state_dict().items():
        assert not np.array_equal(array, first[name]), name
        np.testing.assert_allclose(last[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


# -- what it prints ------------------------------------------------------------------------------


def perplexities(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"held-out text:? +(\d+\.\d+)", output)]


@pytest.mark.long
def test_perplexity_falls_and_the_model_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TRAINING_STEPS": 24, "LINE_EVERY": 12, "SAMPLE": 30, "HIDDEN": 48}.items():
        monkeypatch.setattr(example, name, value)
    with Cluster(3) as cluster:
        cluster.call(0, example.train)
    output = capsys.readouterr().out
    first, middle, last = perplexities(output)
    assert first > 80.0
    assert first / 3 > middle > last
    assert last < 15.0
    written = output.partition("it writes:\n")[2]
    assert written.startswith("The ")
    assert len(written) == len("The ") + 30 + len("\n")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_example_learns_to_write(programs: Programs) -> None:
    output = programs.run([*LAUNCH, "3", "examples/rnn_model_parallel.py"], limit=280.0)
    first, *_, last = perplexities(output)
    assert first > 80.0
    assert last < 4.5
    assert "it writes:\n" in output
    assert "warning" not in output.lower()
