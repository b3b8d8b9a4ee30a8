"""Processes of a pipeline that are killed or stopped at random points; the others go on."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import nn, optim, rpc
from telegrad.autograd import Function, Tensor
from telegrad.errors import PipelineError
from telegrad.parallel import Pipeline
from telegrad.testing import Cluster
from telegrad.testing.leaks import held_references, no_leaked_children, wait_until_gone
from tests.parallel.pipeline.models import SCHEDULES, close, left_behind

LOSS = nn.functional.mse_loss
M, ROWS, WIDTH = 4, 126, 256  # a micro-batch is 64 KiB: it goes through shared memory
HOSTS = ["worker1", "worker2", "worker3"]
SPARES = ["worker4", "worker5", "worker6", "worker0"]  # the driver is the last resort
JOBS = 10  # of each schedule; each loses a worker for each spare: 200 losses in all
LOST_AFTER = 2.0
LATE = 20.0  # a machine with two cores and ten processes may stand still for some time
TIMEOUT = 60.0
MOST_MAPPED = 8  # stretches of shared memory; a lost peer's would add to them with each loss


class Trap:
    """The point at which this process gets a signal; set by the driver."""

    def __init__(self) -> None:
        self.where: tuple[str, int, int] | None = None  # kind, stage, micro-batch
        self.signal = signal.SIGKILL
        self.counts: dict[int, int] = {}

    def set(self, where: tuple[str, int, int], number: int) -> None:
        self.where, self.signal = where, signal.Signals(number)

    def pass_by(self, kind: str, stage: int, i: int) -> None:
        if self.where == (kind, stage, i):
            self.where = None
            os.kill(os.getpid(), self.signal)

    def next(self, stage: int) -> int:
        """The micro-batch of this forward: they come in order."""
        i = self.counts.get(stage, 0)
        self.counts[stage] = i + 1
        return i % M


trap = Trap()


class Watch(Function):
    """Passes its input on, and looks into the trap in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Any, kinds: str, stage: int, i: int) -> Any:
        ctx.kinds, ctx.stage, ctx.i = kinds, stage, i
        trap.pass_by(kinds[0], stage, i)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        trap.pass_by(ctx.kinds[1], ctx.stage, ctx.i)
        return g, None, None, None


class Mortal(nn.Module):
    """A stage with a trap in its forward, in its inputs' gradients and in its weights' gradients."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.stage = stage
        rng = np.random.default_rng(stage)
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=np.float64, rng=rng)
        self.factor = nn.Parameter(np.ones(()))

    def forward(self, x: Tensor) -> Any:
        i = trap.next(self.stage)
        y = Watch.apply(np.tanh(self.linear(x)), "FI", self.stage, i)
        return x * 0.5 + y * Watch.apply(self.factor, ".W", self.stage, i)


def arm(where: tuple[str, int, int], number: int) -> None:
    trap.counts.clear()
    trap.set(where, number)


def disarm() -> None:
    """A step that failed has not run all forwards."""
    trap.counts.clear()


def held() -> dict[str, int]:
    """What this worker holds for and from others."""
    gc.collect()
    return held_references()


def process_id() -> int:
    return os.getpid()


def shared_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:telegrad")


def batch(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(ROWS, WIDTH)), rng.normal(size=(ROWS, WIDTH))


class Training:
    """A pipeline, the unsplit model beside it, and the points from which both may go on.

    A point is the state of the unsplit model and of its optimizer.
    """

    def __init__(self, schedule: str, *, keep_copies: bool) -> None:
        several = schedule in ("interleaved", "zb-v")
        order = [*HOSTS, *(HOSTS if schedule == "interleaved" else reversed(HOSTS))]
        self.hosts = order if several else list(HOSTS)
        stages = range(len(self.hosts))
        self.model = nn.Sequential(*(Mortal(k) for k in stages))
        self.own = optim.Adam(self.model.parameters(), lr=0.01)
        self.keeps = keep_copies
        self.pipe = Pipeline(
            [(self.hosts[k], Mortal, (k,)) for k in stages],
            schedule=schedule,
            num_microbatches=M,
            loss=LOSS,
            keep_copies=keep_copies,
            timeout=TIMEOUT,
        )
        self.optimizer = self.pipe.optimizer(optim.Adam, lr=0.01)
        self.steps = 0
        self.points: list[Any] = []
        self.train()

    def train(self) -> None:
        """Trains both by one step; then they are the same."""
        inputs, targets = batch(self.steps)
        self.own.zero_grad()
        loss = LOSS(self.model(inputs), targets)
        loss.backward()
        assert self.pipe.step(inputs, targets) == pytest.approx(loss.item(), rel=1e-10)
        self.own.step()
        if self.keeps:
            self.points.append(self.point())  # perhaps all of the pipeline have stepped, too
        self.optimizer.step()
        self.points = [self.point()] if self.keeps else self.points
        if not self.keeps and self.steps % 3 == 0:
            self.pipe.state_dict()
            self.points = [self.point()]
        self.steps += 1

    def point(self) -> Any:
        return deepcopy((self.model.state_dict(), self.own.state_dict()))

    def go_on(self) -> None:
        """Brings the unsplit model to the point at which the pipeline is: one of those known."""
        found = self.pipe.state_dict()
        fitting = [
            each
            for each in self.points
            if all(np.allclose(found[name], x, rtol=1e-9, atol=1e-9) for name, x in each[0].items())
        ]
        assert fitting, "the stages are not at one step, or at an unknown one"
        state, of_optimizer = fitting[0]
        self.model.load_state_dict(state)
        self.own.load_state_dict(of_optimizer)
        self.points = [(state, of_optimizer)]
        for _ in range(2):
            self.train()
        close(self.pipe.state_dict(), self.model.state_dict())
        self.points = [self.point()]  # a state_dict is where a pipeline without copies goes on


def everywhere(workers: list[str], func: Callable[[], Any]) -> dict[str, Any]:
    """The results of a function on several workers; the driver is one of them."""
    return {name: rpc.rpc_sync(name, func) for name in workers}


def nothing_left(workers: list[str]) -> None:
    def left() -> list[str]:
        found = everywhere(workers, left_behind)
        return [f"{what} on {name}" for name, each in found.items() for what in each]

    wait_until_gone("parts of a step", left)


def lose_one(training: Training, spare: str, choose: random.Random) -> str:
    """Loses a worker at a random point, checks the error, and replaces the worker."""
    victim = choose.choice(sorted(set(training.hosts)))
    number = choose.choice([signal.SIGKILL, signal.SIGSTOP])
    pid = rpc.rpc_sync(victim, process_id)
    at = "at a random time"
    timer = None
    if choose.random() < 0.6:
        stage = choose.choice([k for k, name in enumerate(training.hosts) if name == victim])
        where = choose.choice("FIW"), stage, choose.randrange(M)
        at = f"in {where}"
        rpc.rpc_sync(victim, arm, (where, int(number)))
    else:
        began = time.monotonic()
        training.train()
        seconds = choose.uniform(0, 2 * (time.monotonic() - began))
        timer = threading.Timer(seconds, os.kill, (pid, number))
        timer.start()
    began = time.monotonic()
    try:
        with pytest.raises(PipelineError) as caught:
            while time.monotonic() - began < TIMEOUT:
                began_step = time.monotonic()
                training.train()
        took = time.monotonic() - began_step
        error = caught.value
        story = f"{number.name} of {victim} {at}: {took:.2f} s, {error.phase!r}: {error}"
        sys.stdout.write(f"{story}\n")
        assert took < LOST_AFTER + LATE, story
        assert error.worker == victim, story
        assert training.hosts[error.stage] == victim, story
        assert f"stage {error.stage} on worker {victim!r}" in str(error), story
        assert "lost" in str(error), story
        if error.phase.startswith(("forward", "backward")):
            assert error.micro_batch in range(M), story
        living = sorted({"worker0", *training.hosts, spare} - {victim})
        nothing_left(living)
        everywhere(living, disarm)
        if number == signal.SIGSTOP and choose.random() < 0.5:
            os.kill(pid, signal.SIGCONT)  # a lost worker that wakes up disturbs nobody
        training.pipe.replace(error.stage, spare)
        training.hosts = [spare if name == victim else name for name in training.hosts]
        training.go_on()
        nothing_left(living)
    finally:
        if timer is not None:
            timer.cancel()
        os.kill(pid, signal.SIGKILL)
    return story


def lose_all(schedule: str, seed: int, spares: list[str]) -> list[str]:
    """Loses a worker for each spare; returns what happened."""
    choose = random.Random(f"{schedule} {seed}")
    before = everywhere(sorted({"worker0", *HOSTS, *spares}), held)
    training = Training(schedule, keep_copies=seed % 2 == 0)
    story = [lose_one(training, spare, choose) for spare in spares]
    living = sorted({"worker0", *training.hosts})
    mapped = max(everywhere(living, shared_mappings).values())
    assert mapped <= MOST_MAPPED, story
    del training

    def left() -> list[str]:
        return [
            f"{count - before[name][kind]} more {kind} on {name}"
            for name, each in everywhere(living, held).items()
            for kind, count in each.items()
            if count > before[name][kind]
        ]

    wait_until_gone("references", left)
    return story


def run_job(schedule: str, seed: int, spares: list[str]) -> None:
    options = rpc.RpcOptions(lost_after=LOST_AFTER, timeout=TIMEOUT)
    n = len({"worker0", *HOSTS, *spares})
    with (
        no_leaked_children(),
        Cluster(n, processes=True, options=options, limit=500.0) as cluster,
    ):
        for line in cluster.call(0, lose_all, schedule, seed, spares):
            sys.stdout.write(f"{line}\n")


def test_a_process_that_ends_is_replaced() -> None:
    run_job("1f1b", 1, ["worker0"])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(JOBS))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_process_is_killed_or_stopped_at_any_point(schedule: str, seed: int) -> None:
    run_job(schedule, seed, SPARES)
