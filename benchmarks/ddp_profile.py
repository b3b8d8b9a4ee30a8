"""Where the time of a data-parallel step goes: that of benchmarks/peers/ddp.py, phase by phase.

    python benchmarks/ddp_profile.py [--ranks 2] [--busy 4] [--steps 60]

Each step runs twice, with a backward that averages and with one that does not (`no_sync`); the
ranks meet before each. For each phase the table has the wall clock of the first rank and its parts:
its main thread computes, waits for a core that another thread has, or sleeps until another rank or
thread is done. The last column is the processor time of its other threads. Each is the median of
the steps, in milliseconds; so parts need not add up to the whole.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from machine import ROOT, machine, say

sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "peers")]

import ddp  # noqa: E402  # it is in that folder
import perceptron  # noqa: E402

from telegrad import arrays, nn, optim, parallel, tensor  # noqa: E402
from telegrad import collectives as dist  # noqa: E402

WARM_UP = 5  # steps
PHASES = ("forward and loss", "backward, no_sync", "backward", "SGD")
COLUMNS = ("all", "computes", "waits for a core", "sleeps", "other threads")
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Clock:
    """Takes the time of phases, of the thread that makes it.

    Attributes:
        found: The figures of each phase, in milliseconds, one tuple for each time.
    """

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, ...]]] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Takes the time of a block."""
        before = self._read()
        yield
        wall, own, delay, process = (b - a for a, b in zip(before, self._read(), strict=True))
        figures = (wall, own, delay, max(0.0, wall - own - delay), max(0.0, process - own))
        self.found.setdefault(name, []).append(tuple(1e3 * each for each in figures))

    def _read(self) -> tuple[float, ...]:
        """Returns wall clock, this thread's time, its wait for a core and this process' time."""
        own, delay, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
        return time.perf_counter(), own / 1e9, delay / 1e9, time.process_time()


def profile(rank: int, steps: int, figures: Any) -> None:
    """Runs the steps of one rank; the first one writes the medians, which its parent reads."""
    dist.init_process_group()
    layers = [[nn.Linear(given, made), nn.ReLU()] for given, made in pairwise(perceptron.SIZES)]
    network = nn.Sequential(*[each for layer in layers for each in layer][:-1])
    replica = parallel.DistributedDataParallel(network)
    optimizer = optim.SGD(network.parameters(), lr=perceptron.LEARNING_RATE)
    images, labels = perceptron.data(seed=rank)
    x, clock = tensor(images), Clock()

    def step(backward: str, block: contextlib.AbstractContextManager[None]) -> None:
        dist.barrier()
        optimizer.zero_grad()
        with clock.phase("forward and loss"):
            loss = nn.functional.cross_entropy(replica(x), labels)
        with block, clock.phase(backward):
            loss.backward()
        with clock.phase("SGD"):
            optimizer.step()

    for k in range(WARM_UP + steps):
        if k == WARM_UP:
            clock.found.clear()
        step("backward, no_sync", replica.no_sync())
        step("backward", contextlib.nullcontext())
    dist.destroy_process_group()
    if rank == 0:
        figures[...] = [np.median(clock.found[name], axis=0) for name in PHASES]


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--busy", type=int, default=4, help="processes that compute beside")
    parser.add_argument("--steps", type=int, default=60)
    told = parser.parse_args()
    os.environ |= dict.fromkeys(ONE_THREAD, "1")  # of the ranks
    here = machine()
    sys.stdout.write(f"{here['date']}, {here['cores']} cores of {here['cpu']}, ")
    sys.stdout.write(f"Python {here['python']}, load {here['load']:.1f}; {told.ranks} ranks\n\n")
    sys.stdout.write(f"| ms | {' | '.join(COLUMNS)} |\n|---|{'--:|' * len(COLUMNS)}\n")
    figures = arrays.shared_empty((len(PHASES), len(COLUMNS)))
    for n in (0, told.busy):
        say(f"beside {n} busy processes")
        with ddp.busy(n):
            parallel.spawn(profile, (told.steps, figures), told.ranks)
        for name, row in zip(PHASES, figures, strict=True):
            beside = f", beside {n} busy processes" if n else ""
            sys.stdout.write(f"| {name}{beside} | {' | '.join(f'{each:.1f}' for each in row)} |\n")


if __name__ == "__main__":
    main()
