"""Runs the parameter server in its three modes, and compares them with one process."""

from __future__ import annotations

import re
import sys
import threading
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest

import telegrad as tg
from examples import parameter_server
from examples.parameter_server import Floats, Labels, Progress, Shard, Trainer
from telegrad import optim, rpc
from telegrad.nn import functional
from telegrad.testing import Cluster

SERVERS = TRAINERS = STALENESS = 2
STEPS = 5  # of a trainer in an epoch


@pytest.fixture(autouse=True)
def _large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an epoch short."""
    monkeypatch.setattr(parameter_server, "BATCH", 160)
    monkeypatch.setattr(parameter_server, "EPOCHS", 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--servers", "2"], "--servers 2 and --trainers 0 do not make 2"),
        (["--trainers", "3"], "--servers 1 and --trainers 3 do not make 2"),
    ],
)
def test_servers_and_trainers_must_be_all_workers(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["parameter_server.py", *arguments])
    with pytest.raises(SystemExit, match=said):
        parameter_server.parse(world_size=2)


# -- modes ---------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mode", "ahead"), [("synchronous", 1), ("bounded", STALENESS + 1), ("asynchronous", STEPS)]
)
def test_a_trainer_goes_as_far_ahead_as_its_mode_lets_it(
    mode: str, ahead: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second trainer makes each step when the first is as far ahead as it may be."""
    fetched = Counter[int]()
    changed = threading.Condition()
    fetch, step = Shard.fetch, Trainer.step

    def counted_fetch(self: Shard, trainer: int) -> dict[str, tg.Tensor]:
        with changed:
            fetched[trainer] += "0.weight" in self.names  # of one of the servers
            changed.notify_all()
        return fetch(self, trainer)

    def late_step(self: Trainer, images: Floats, labels: Labels) -> float:
        if self.me == 1:
            with changed:
                assert changed.wait_for(
                    lambda: fetched[0] - fetched[1] >= ahead or fetched[0] == STEPS, 20.0
                ), f"no {ahead} steps ahead"
        return step(self, images, labels)

    monkeypatch.setattr(Shard, "fetch", counted_fetch)
    monkeypatch.setattr(Trainer, "step", late_step)
    options = Namespace(servers=SERVERS, trainers=TRAINERS, mode=mode, staleness=STALENESS)
    with Cluster(SERVERS + TRAINERS) as cluster:
        cluster.call(0, parameter_server.serve, options)
    output = capsys.readouterr().out
    assert f"{mode}, servers: 2, trainers: 2" in output
    assert f"steps that a trainer had begun more than the slowest: {ahead}, at most" in output
    assert re.search(r"test accuracy: \d+\.\d %\n", output)


def train_in_rounds() -> dict[str, Floats]:
    workers = rpc.get_worker_infos()
    shards = [rpc.remote(i, Shard, (i, SERVERS, TRAINERS)) for i in range(SERVERS)]
    trainers = workers[SERVERS:]
    optimizer = parameter_server.make_optimizer(shards, trainers, "synchronous", 0)
    progress = rpc.RRef(Progress(TRAINERS))
    made = [
        rpc.remote(worker, Trainer, (k, TRAINERS, shards, optimizer, progress))
        for k, worker in enumerate(trainers)
    ]
    rpc.wait_all([trainer.rpc_async().train() for trainer in made])
    with tg.no_grad():
        parts = [shard.rpc_sync().parameters_by_name() for shard in shards]
    return {name: each.numpy() for part in parts for name, each in part.items()}


def train_alone() -> dict[str, Floats]:
    """Does the same in one process, with the mean of both trainers' gradients in each step."""
    (images, labels), _ = parameter_server.load_data()
    parts = []
    for k in range(TRAINERS):
        mine = np.arange(k, len(images), TRAINERS)[: len(images) // TRAINERS]
        parts.append(mine[np.random.default_rng(1 + k).permutation(len(mine))])
    whole = parameter_server.make_parameters()
    parameters = {name: tg.tensor(array, requires_grad=True) for name, array in whole.items()}
    optimizer = optim.SGD(
        parameters.values(), lr=parameter_server.LEARNING_RATE, momentum=parameter_server.MOMENTUM
    )
    for start in range(0, len(parts[0]), parameter_server.BATCH):
        optimizer.zero_grad()
        for part in parts:
            batch = part[start : start + parameter_server.BATCH]
            loss = functional.cross_entropy(
                parameter_server.logits_of(parameters, images[batch]), labels[batch]
            )
            (loss / TRAINERS).backward()
        optimizer.step()
    return {name: parameter.data for name, parameter in parameters.items()}


def test_synchronous_training_is_that_of_one_process() -> None:
    with Cluster(SERVERS + TRAINERS) as cluster:
        found = cluster.call(0, train_in_rounds)
    expected = train_alone()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5)
