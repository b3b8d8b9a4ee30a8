"""telegrad's pipelines: steps beside one process, the price of a crossing, and ideal times.

    python telegrad_pipeline.py step | crossing | ideal | hosts [--seconds 5]

`crossing` is the processor time of both processes for the forward and the backward of one micro-batch over
one boundary of 64 KiB, without that of the stages. It is taken from the difference between steps of few and
of many micro-batches; what such a step takes beside its micro-batches is given as well. `ideal` runs stages
that sleep, and divides the length of each schedule as it ran by that of its table. `hosts` does the same for
two stages on two hosts, where `--rank` starts one of them: a micro-batch has 4 MB, and the table has
transfers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pipeline_steps as steps

import telegrad
from telegrad import nn, rpc
from telegrad.autograd import Function, Tensor
from telegrad.autograd.seams import HalvedBackward, edge_of, graph_root
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline import (
    Action,
    Costs,
    Kind,
    PipelineReport,
    Schedule,
    make_schedule,
    simulate,
)
from telegrad.testing import Cluster

LOSS = nn.functional.cross_entropy
CROSSING_ROWS, CROSSING_COLUMNS = 128, 128  # of float32: 64 KiB
FEW, MANY = 16, 64  # micro-batches of the steps whose difference is looked at
CROSSING_TURNS = 4
SLEEP = 0.05
IDEAL_STEPS = 2  # the shorter one counts: other work of the machine only adds to a step
PLACES, COUNTS = (2, 4, 8), (4, 8, 32)
NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
HOSTS_MICRO_BATCHES = 8
HOSTS_SHAPE = 1000, 1000  # of a micro-batch in float32
TRANSFERS = 5  # steps that measure one


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


def order_of(name: str, workers: Sequence[str]) -> list[str]:
    """Returns the workers of the stages of a schedule.

    >>> order_of("zb-v", ["a", "b"])
    ['a', 'b', 'b', 'a']
    """
    second = {"interleaved": workers, "zb-v": workers[::-1]}
    return [*workers, *second.get(name, ())]


def alone(stages: Sequence[nn.Module], *, halves: bool) -> None:
    """Runs one micro-batch through stages of this process, forward and backward."""
    x = Tensor(np.ones((CROSSING_ROWS, CROSSING_COLUMNS), np.float32))
    passed = []
    for stage in stages:
        passed.append((x, stage(x)))
        x = Tensor(passed[-1][1].data, requires_grad=True)
    gradient = None
    for x, y in reversed(passed):
        if halves:
            edge = edge_of(x)
            halved = HalvedBackward([graph_root(y, gradient)], [] if edge is None else [edge])
            found = halved.run_inputs()
            halved.run_weights(lambda parameter, gradient: None)
            gradient = None if edge is None else found[edge]
        else:
            y.backward(gradient)
            gradient = x.grad


def measure_crossing(seconds: float) -> dict[str, Any]:
    """Returns the processor time of a crossing, in microseconds; runs on worker0."""
    found, compute = {}, {}
    for name in NAMES:
        order = order_of(name, ["worker0", "worker1"])
        halves = name.startswith("zb")
        kind = f"{len(order)} stages{', backward in halves' * halves}"
        if kind not in compute:
            stages = [*(Scale() for _ in order[1:]), Last()]
            began = time.process_time()
            rounds = steps.timed(partial(alone, stages, halves=halves), seconds / 4)
            compute[kind] = (time.process_time() - began) / (rounds["steps"] + steps.WARM_UP)
        made: list[Any] = [(worker, Scale) for worker in order[:-1]]
        spent: dict[int, list[float]] = {FEW: [], MANY: []}
        pipes = {
            count: Pipeline([*made, (order[-1], Last)], schedule=name, num_microbatches=count)
            for count in spent
        }
        for _, count in itertools.product(range(CROSSING_TURNS), spent):
            spent[count].append(spent_on(pipes[count], count, seconds / CROSSING_TURNS / 2))
        few, many = statistics.median(spent[FEW]), statistics.median(spent[MANY])
        each = (many - few) / (MANY - FEW)
        boundaries = sum(a != b for a, b in itertools.pairwise(order))
        found[name] = {"p50": 1e6 * (each - compute[kind]) / boundaries}
        found[f"{name}, a step"] = {"p50": 1e6 * (few - FEW * each)}
    return {kind: {"p50": 1e6 * each} for kind, each in compute.items()} | found


def spent_on(pipe: Pipeline, count: int, seconds: float) -> float:
    """Returns the processor time of both processes for a step, in seconds."""
    inputs = np.ones((count * CROSSING_ROWS, CROSSING_COLUMNS), np.float32)
    for _ in range(steps.WARM_UP):
        pipe.step(inputs)
    before = [rpc.rpc_sync(f"worker{k}", processor_time) for k in (0, 1)]
    rounds = steps.timed(lambda: pipe.step(inputs), seconds)["steps"] + steps.WARM_UP
    after = [rpc.rpc_sync(f"worker{k}", processor_time) for k in (0, 1)]
    return sum(b - a for a, b in zip(before, after, strict=True)) / rounds


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


def ahead(count: int) -> Schedule:
    """Returns 1F1B for two places where the first one runs a forward more before it waits.

    F0 F1 F2 B0 F3 B1 F4 B2    B3    B4
       F0 B0 F1 B1 F2 B2 F3 B3 F4 B4
    """

    def row(place: int, early: int) -> tuple[Action, ...]:
        ticks = [(2 * i, Action(Kind.FORWARD, place, i)) for i in range(count)]
        ticks += [(2 * (i + early) - 1, Action(Kind.BACKWARD, place, i)) for i in range(count)]
        return tuple(action for _, action in sorted(ticks, key=lambda each: each[0]))

    return Schedule("1f1b ahead", (row(0, 3), row(1, 1)))


def measure_hosts() -> dict[str, Any]:
    """Returns lengths divided by those of the tables, on two hosts; runs on worker0.

    The table has a transfer as long as it takes where nothing else goes on. For each schedule there is
    also the length of a table in which stages wait for what they hand over, divided by the same.
    """
    transfer = transfer_time()
    found = {"transfer, ms": {"p50": 1e3 * transfer}}
    count = HOSTS_MICRO_BATCHES
    for schedule in [*(make_schedule(name, 2, count) for name in NAMES), ahead(count)]:
        pipe, inputs = between_hosts(schedule)
        ratios = []
        for _ in range(IDEAL_STEPS):
            pipe.step(inputs)
            report = pipe.report()
            ideal = simulate(schedule, costs(schedule, report, transfer)).length
            waiting = simulate(schedule, costs(schedule, report, transfer, hidden=False)).length
            ratios.append((report.length / ideal, waiting / ideal))
        least, waiting = min(ratios)
        found[schedule.name] = {"p50": least}
        found[f"{schedule.name}, nothing hidden"] = {"p50": waiting}
    return found


def between_hosts(schedule: Schedule) -> tuple[Pipeline, Any]:
    """Returns a pipeline over both hosts that has recorded its messages, and its inputs."""
    order = [f"worker{schedule.place_of(stage)}" for stage in range(schedule.stages)]
    stages: list[Any] = [(worker, Sleeper) for worker in order[:-1]]
    count = schedule.micro_batches
    pipe = Pipeline([*stages, (order[-1], LastSleeper)], schedule=schedule, num_microbatches=count)
    rows, columns = HOSTS_SHAPE
    inputs = np.ones((count * rows, columns), np.float32)
    pipe.step(inputs)
    return pipe, inputs


def transfer_time() -> float:
    """Returns the seconds from the end of an action until the other host has its result."""
    pipe, inputs = between_hosts(make_schedule("gpipe", 2, 1))
    taken = []
    for _ in range(TRANSFERS):
        pipe.step(inputs)
        report = pipe.report()
        taken.append((report.length - report.ideal_length) / 2)
    return statistics.median(taken)


def costs(
    schedule: Schedule, report: PipelineReport, transfer: float, *, hidden: bool = True
) -> Costs:
    """Returns the times of a step's actions, with a transfer between places or in the actions."""
    names = {kind.value: kind.name.lower() for kind in Kind}
    times = {names[letter]: list(each) for letter, each in report.times.items()}
    if not hidden:
        homes = [schedule.place_of(stage) for stage in range(schedule.stages)]
        away = [transfer * (here != there) for here, there in itertools.pairwise(homes)]
        sent = {"forward": [*away, 0.0], "backward": [0.0, *away], "inputs": [0.0, *away]}
        for name in times.keys() & sent.keys():
            times[name] = [t + more for t, more in zip(times[name], sent[name], strict=True)]
        transfer = 0.0
    return Costs(**{"backward": 0.0, **times}, transfer=transfer)  # type: ignore[arg-type]


def one_of(rank: int, meet: str) -> dict[str, Any]:
    """Runs one of two workers that are on two hosts; returns the figures of the first one."""
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, init_method=meet)
    figures = {} if rank else measure_hosts()
    rpc.shutdown()
    return figures


def measure_ideal(places: int) -> dict[str, Any]:
    """Returns lengths divided by those of the tables, at so many places; runs on worker0."""
    found = {}
    for name, count in itertools.product(NAMES, COUNTS):
        order = order_of(name, [f"worker{k}" for k in range(places)])
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
    parser.add_argument("what", choices=["step", "crossing", "ideal", "hosts"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--meet", default="")
    told = parser.parse_args()
    if told.what == "hosts":
        figures = one_of(told.rank, told.meet)
    elif told.what == "ideal":
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
