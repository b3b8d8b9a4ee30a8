"""Steps after the first send only bytes; values of other shapes are described again."""

from __future__ import annotations

import math
import threading
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import nn, optim
from telegrad.autograd import Tensor
from telegrad.autograd.seams import HalvedBackward
from telegrad.errors import PipelineError
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline.mailbox import Mailboxes, PlaceMailbox
from telegrad.rpc.seams import Stay
from telegrad.testing import Cluster
from telegrad.transport.io import socket_reader as reader_module
from tests.parallel.pipeline.models import Block, batch, close, reference
from tests.parts import needs_epoll

LOSS = nn.functional.cross_entropy
M = 3


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kind of each message between stages, in the order of arrival."""
    seen: list[str] = []
    for name in ("on_carry", "on_again"):
        handle = getattr(Mailboxes, name)

        def watched(self: Any, peer: Any, envelope: Any, handle: Any = handle) -> None:
            seen.append(envelope.kind.removeprefix("pipeline."))
            handle(self, peer, envelope)

        monkeypatch.setattr(Mailboxes, name, watched)
    return seen


def step(pipe: Pipeline, model: nn.Module, rows: int) -> None:
    loss, gradients = reference(model, *batch(rows))
    assert pipe.step(*batch(rows)) == pytest.approx(loss, rel=1e-10)
    close(pipe.gradients(), gradients)
    pipe.optimizer(optim.SGD, lr=0.1).zero_grad()


def shapes(kinds: list[str], rows: list[int]) -> list[tuple[int, set[str]]]:
    model = nn.Sequential(Block(0), Block(1))
    pipe = Pipeline.from_sequential(model, ["worker0", "worker1"], num_microbatches=M, loss=LOSS)
    found = []
    for n in rows:
        kinds.clear()
        step(pipe, model, n)
        found.append((n, set(kinds)))
    return found


@pytest.mark.long
def test_a_step_of_known_shapes_sends_only_bytes(kinds: list[str]) -> None:
    with Cluster(2) as cluster:

        @given(st.lists(st.integers(M, 9), min_size=2, max_size=6))
        @settings(max_examples=10, deadline=None)
        def check(rows: list[int]) -> None:
            known: set[int] = set()
            for n, seen in cluster.call(0, shapes, kinds, rows):
                parts = {n // M} | ({n // M + 1} if n % M else set())
                assert ("carry" in seen) == bool(parts - known)
                assert ("again" in seen) == bool(parts & known)
                known |= parts

        check()


# -- the threads that read -----------------------------------------------------------------------

READERS: list[tuple[str, int]] = []  # in each worker: the place of a call and its thread


def watch_readers() -> None:
    """Counts all work of stages as short, and notes where messages and the ends of steps come."""
    reader_module.SHORT_SECONDS = math.inf
    for owner, name in ((PlaceMailbox, "put"), (PlaceMailbox, "end")):
        method = getattr(owner, name)

        def noted(*given: Any, method: Any = method, name: str = name) -> None:
            READERS.append((name, threading.get_ident()))
            method(*given)

        setattr(owner, name, noted)


def readers() -> list[tuple[str, int]]:
    return list(READERS)


class Slow(nn.Module):
    """Takes longer than the stage before it, so that messages come while it is at work."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(1)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        return self.block(x)


def steps_of(count: int) -> None:
    pipe = Pipeline([("worker0", Block, (0,)), ("worker1", Slow)], num_microbatches=16, loss=LOSS)
    for _ in range(count):
        pipe.step(*batch(32))


@pytest.mark.long
@needs_epoll
def test_the_thread_of_a_stage_reads_its_messages_itself() -> None:
    with Cluster(2, processes=True) as cluster:
        for rank in (0, 1):
            cluster.call(rank, watch_readers)
        cluster.call(0, steps_of, 3)
        noted = cluster.call(1, readers)
    ends = [k for k, (name, _) in enumerate(noted) if name == "end"]
    assert len(ends) == 3
    most = 0
    for begin, end in pairwise(ends):
        row = noted[end][1]
        read = [thread == row for name, thread in noted[begin + 1 : end] if name == "put"]
        assert len(read) == 16
        most = max(most, sum(read))
    # 1F1B sends two activations ahead: they may come before the stage begins its step. A tick takes
    # the role back now and then where the machine is busy, but not in every step.
    assert most >= 12


def weights_alone() -> None:
    stages = [(f"worker{k}", Block, (k,)) for k in range(2)]
    pipe = Pipeline(stages, schedule="zb-h1", num_microbatches=M, loss=LOSS)
    pipe.step(*batch(6))


def test_a_stage_reads_before_it_computes_gradients_of_weights_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That action takes no value, and several of them may end a row."""
    seen: list[tuple[int, str]] = []
    for owner, name in ((Stay, "look"), (HalvedBackward, "run_weights")):
        method = getattr(owner, name)

        def noted(*given: Any, method: Any = method, name: str = name) -> None:
            seen.append((threading.get_ident(), name))
            method(*given)

        monkeypatch.setattr(owner, name, noted)
    with Cluster(2) as cluster:
        cluster.call(0, weights_alone)
    rows = [[name for thread, name in seen if thread == row] for row in {row for row, _ in seen}]
    before = [pair[0] for row in rows for pair in pairwise(row) if pair[1] == "run_weights"]
    assert before == ["look"] * 2 * M


class Dynamic(nn.Module):
    """Gives other shapes, dtypes and numbers of outputs from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(0)
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        y = self.block(x)
        if self.calls % 3 == 0:
            return y.T
        return (y, y * 2.0) if self.calls % 3 == 1 else y[:, ::-1]


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(np.array(2.0))

    def forward(self, *given: Any) -> Any:
        total = sum((each * each).sum() for each in given)
        return total * self.scale


def dynamic() -> list[float]:
    pipe = Pipeline([("worker0", Dynamic), ("worker1", Folded)], num_microbatches=2)
    found = [pipe.step(batch(5, seed)[0]) for seed in range(6)]
    first, last = Dynamic(), Folded()
    for seed in range(6):
        expected = []
        for part in np.array_split(batch(5, seed)[0], 2):
            given = first(Tensor(part))
            loss = last(*given) if isinstance(given, tuple) else last(given)
            expected.append(loss.item() * len(part) / 5)
        assert found[seed] == pytest.approx(sum(expected), rel=1e-10)
    return found


def test_shapes_that_change_are_right() -> None:
    with Cluster(2) as cluster:
        assert len(cluster.call(0, dynamic)) == 6


class Failing(nn.Module):
    """Raises in its first step, after some micro-batches were handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(1)
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("once")
        return self.block(x)


def after_a_failure() -> None:
    pipe = Pipeline(
        [("worker0", Block, (0,)), ("worker1", Failing), ("worker0", Block, (2,))],
        num_microbatches=M,
        loss=LOSS,
    )
    with pytest.raises(PipelineError, match="once"):
        pipe.step(*batch(6))
    sound = Failing()
    sound.calls = 2
    model = nn.Sequential(Block(0), sound, Block(2))
    for rows in (6, 6, 7):
        step(pipe, model, rows)


def test_a_step_that_failed_leaves_no_recording() -> None:
    with Cluster(2) as cluster:
        cluster.call(0, after_a_failure)
