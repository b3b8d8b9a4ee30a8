"""telegrad's pipelines: steps beside one process, the price of a crossing, and ideal times.

    python telegrad_pipeline.py step | crossing | ideal [--seconds 5]

`crossing` is the processor time of both processes for one micro-batch's forward and backward over one
boundary of 64 KiB, less that of the two stages computed in one process. `ideal` runs stages that sleep:
the length of each schedule as it ran, divided by that of its table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from typing import Any

import numpy as np
import pipeline_steps as steps

import telegrad
from telegrad import nn, rpc
from telegrad.autograd import Function, Tensor
from telegrad.parallel import Pipeline
from telegrad.testing import Cluster

LOSS = nn.functional.cross_entropy
CROSSING_ROWS, CROSSING_COLUMNS = 128, 128  # of float32: 64 KiB
CROSSING_MICRO_BATCHES = 32
SLEEP = 0.05
IDEAL_STEPS = 2  # the shorter one counts: other work of the machine only adds to a step
PLACES, COUNTS = (2, 4, 8), (4, 8, 32)
NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")


def model() -> nn.Sequential:
    """Returns the network."""
    layers: list[nn.Module] = []
    for weight in steps.weights():
        layer = nn.Linear(steps.WIDTH, steps.WIDTH)
        layer.load_state_dict({"weight": weight, "bias": np.zeros(steps.WIDTH, np.float32)})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# -- steps ---------------------------------------------------------------------------------------


def measure_steps(seconds: float) -> dict[str, Any]:
    """Returns the figures of the steps; runs on worker0, which has the first stage."""
    whole = model()
    inputs, labels = steps.data()
    parts = list(
        zip(
            np.array_split(inputs, steps.MICRO_BATCHES),
            np.array_split(labels, steps.MICRO_BATCHES),
            strict=True,
        )
    )

    def one() -> None:
        whole.zero_grad()
        LOSS(whole(inputs), labels).backward()

    def by_parts() -> None:
        whole.zero_grad()
        for x, y in parts:
            (LOSS(whole(x), y) * (1 / steps.MICRO_BATCHES)).backward()

    found = {
        "one process": steps.timed(one, seconds),
        "one process, micro-batches": steps.timed(by_parts, seconds),
    }
    for schedule in steps.SCHEDULES:
        pipe = Pipeline.from_sequential(
            whole,
            ["worker0", "worker1"],
            balance=[4, 3],
            schedule=schedule,
            num_microbatches=steps.MICRO_BATCHES,
            loss=LOSS,
        )
        waiting = pipe.optimizer(telegrad.optim.SGD, lr=0.0)

        def step(pipe: Pipeline = pipe, waiting: Any = waiting) -> None:
            pipe.step(inputs, labels)
            waiting.zero_grad()

        found[schedule] = steps.timed(step, seconds)
    return found


# -- a crossing ----------------------------------------------------------------------------------


class Scale(nn.Module):
    """The least stage: one product."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(np.ones((), np.float32))

    def forward(self, x: Any) -> Any:
        """Returns the output."""
        return x * self.factor


class Last(Scale):
    """The same, and a loss."""

    def forward(self, x: Any) -> Any:
        """Returns the output."""
        return (x * self.factor).mean()


def processor_time() -> float:
    """Returns the processor time of this process so far."""
    return time.process_time()


def measure_crossing(seconds: float) -> dict[str, Any]:
    """Returns the processor time of a crossing, in microseconds; runs on worker0."""
    count = CROSSING_MICRO_BATCHES
    inputs = np.ones((count * CROSSING_ROWS, CROSSING_COLUMNS), np.float32)
    parts = np.array_split(inputs, count)
    first, last = Scale(), Last()

    def alone() -> None:
        for part in parts:
            y = first(Tensor(part))
            x = Tensor(y.data, requires_grad=True)
            last(x).backward()
            assert x.grad is not None
            y.backward(x.grad)

    began = time.process_time()
    rounds = steps.timed(alone, seconds)["steps"] + steps.WARM_UP
    compute = (time.process_time() - began) / rounds / count
    found = {"compute": {"p50": 1e6 * compute}}
    for schedule in steps.SCHEDULES:
        pipe = Pipeline(
            [("worker0", Scale), ("worker1", Last)], schedule=schedule, num_microbatches=count
        )
        for _ in range(steps.WARM_UP):
            pipe.step(inputs)
        before = [rpc.rpc_sync(f"worker{k}", processor_time) for k in (0, 1)]
        rounds = steps.timed(lambda pipe=pipe: pipe.step(inputs), seconds)["steps"]  # type: ignore[misc]
        rounds += steps.WARM_UP
        after = [rpc.rpc_sync(f"worker{k}", processor_time) for k in (0, 1)]
        spent = sum(b - a for a, b in zip(before, after, strict=True)) / rounds / count
        found[schedule] = {"p50": 1e6 * (spent - compute)}
    return found


# -- ideal times ---------------------------------------------------------------------------------


class Nap(Function):
    """Sleeps in the forward and in both halves of the backward: each is a node of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Returns the output."""
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        """Returns the gradient."""
        time.sleep(SLEEP)
        return g


class Sleeper(nn.Module):
    """A stage that takes SLEEP for a forward, and twice that for a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(np.ones((), np.float32))

    def forward(self, x: Any) -> Any:
        """Returns the output."""
        time.sleep(SLEEP)
        return Nap.apply(x) * Nap.apply(self.factor)


class LastSleeper(Sleeper):
    """The same, and a loss."""

    def forward(self, x: Any) -> Any:
        """Returns the output."""
        return super().forward(x).mean()


def measure_ideal(places: int) -> dict[str, Any]:
    """Returns lengths divided by those of the tables, at so many places; runs on worker0."""
    found = {}
    for name, count in itertools.product(NAMES, COUNTS):
        workers = [f"worker{k}" for k in range(places)]
        order = list(workers)
        if name == "interleaved":
            order = [*workers, *workers]
        elif name == "zb-v":
            order = [*workers, *reversed(workers)]
        stages: list[Any] = [(worker, Sleeper) for worker in order[:-1]]
        pipe = Pipeline([*stages, (order[-1], LastSleeper)], schedule=name, num_microbatches=count)
        inputs = np.ones((count, 1), np.float32)
        ratios = []
        for _ in range(IDEAL_STEPS):
            pipe.step(inputs)
            report = pipe.report()
            ratios.append(report.length / report.ideal_length)
        found[f"{name} P={places} M={count}"] = {"p50": min(ratios)}
    return found


def main() -> None:
    """Measures, and reports as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["step", "crossing", "ideal"])
    parser.add_argument("--seconds", type=float, default=5.0)
    told = parser.parse_args()
    if told.what == "ideal":
        figures = {}
        for places in PLACES:
            options = rpc.RpcOptions(timeout=300.0)
            with Cluster(places, options=options, limit=600.0) as cluster:  # sleeps in one process
                figures |= cluster.call(0, measure_ideal, places)
    else:
        run = measure_steps if told.what == "step" else measure_crossing
        with Cluster(2, processes=True, limit=300.0) as cluster:
            figures = cluster.call(0, run, told.seconds)
    sys.stdout.write(json.dumps({"version": "telegrad", "figures": figures}) + "\n")


if __name__ == "__main__":
    main()
