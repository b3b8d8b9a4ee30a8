"""Runs jobs of real processes while workers are killed and stopped and connections break, by seed.

    scripts/chaos.py --runs 200 --seed 1     runs 1 to 200, two at a time
    scripts/chaos.py --runs 1 --seed 17      run 17 again

Each run starts three or four workers. They call each other, make RRefs, read streams, take gradients
and do collective operations (tests/chaos/work.py), and each result is compared with the right one.
Meanwhile the plan of the seed kills workers (SIGKILL), stops them for less or more time than
`lost_after` (SIGSTOP, SIGCONT), breaks their connections, and on faulty networks cuts and heals them.
A run fails if an operation has a wrong value, an error that no fault explains, or no end; if a call
ran twice; or if a process, a socket or shared memory is left. The seed fixes the plan and the draws,
not the order in which the machine runs threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from telegrad import rpc  # noqa: E402  # what is run here is not installed
from telegrad.errors import WorkerLostError  # noqa: E402
from telegrad.testing import (  # noqa: E402
    Cluster,
    FaultPlan,
    no_leaked_children,
    no_leaked_descriptors,
    no_leaked_threads,
)
from tests.chaos import work  # noqa: E402

LOST_AFTER = 1.5
LEAST_SECONDS = 2.0  # of work, which goes on for a while after the last fault
AFTER_SECONDS = 0.7
MOST_SECONDS = 150.0  # of one run; then all threads are shown and the process ends
EXIT_SECONDS = 5.0  # for processes that have shut down
NETWORKS: Final = ("unix", "grpc", "tcp", "faulty")


@dataclass(frozen=True)
class Event:
    """A fault: what happens to which worker or host, after so many seconds, and for how many."""

    at: float
    kind: str
    rank: int
    seconds: float = 0.0
    whom: str = "worker"

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind} {self.whom}{self.rank} at {self.at:.1f} s{lasting}"


class AnyPlan(Protocol):
    """The part of a plan that every kind of run needs."""

    @property
    def seed(self) -> int:
        """The number from which all is drawn."""

    @property
    def events(self) -> tuple[Event, ...]:
        """The faults."""

    @property
    def seconds(self) -> float:
        """How long workers work."""


@dataclass(frozen=True)
class Plan:
    """What one seed means: the workers, the network between them, and the faults."""

    seed: int
    n: int
    network: str
    events: tuple[Event, ...]

    @property
    def seconds(self) -> float:
        """How long workers work."""
        ends = [event.at + event.seconds for event in self.events]
        return max(LEAST_SECONDS, *(end + AFTER_SECONDS for end in ends))

    def __str__(self) -> str:
        faults = "; ".join(map(str, self.events)) or "no faults"
        return f"seed {self.seed}: {self.n} workers, {self.network}; {faults}"


def plan_of(seed: int) -> Plan:
    """Draws a plan: up to four faults, of which at most one is a kill and one a stop for long."""
    draw = random.Random(f"chaos {seed}")
    n, network = draw.choice([3, 4]), draw.choice(NETWORKS)
    kinds = ["kill", "stop", "short stop", "break", "break"]
    kinds += ["cut", "short cut"] if network == "faulty" else []
    chosen = draw.sample(kinds, draw.randrange(1, 5))
    ranks = draw.sample(range(n), n)
    events = []
    for kind in chosen:
        short = kind.startswith("short")
        share = draw.uniform(0.1, 0.5) if short else draw.uniform(1.3, 1.8)
        seconds = 0.0 if kind in ("kill", "break") else share * LOST_AFTER
        rank = ranks[0] if kind == "kill" else draw.choice(ranks[1:])
        events.append(Event(draw.uniform(0.0, 1.2), kind.removeprefix("short "), rank, seconds))
    return Plan(seed, n, network, tuple(sorted(events, key=lambda event: event.at)))


def options_of(network: str, seed: int) -> dict[str, Any]:
    """Returns the arguments of a cluster for one kind of network; faults by chance have the seed."""
    common: dict[str, Any] = {"timeout": work.CALL_SECONDS, "lost_after": LOST_AFTER}
    if network != "unix":
        common["direct"] = "tcp" if network == "tcp" else False
    found: dict[str, Any] = {"options": rpc.RpcOptions(**common), "limit": MOST_SECONDS}
    if network == "faulty":
        faults: dict[str, Any] = {
            "drop": 0.01,
            "delay": 0.05,
            "duplicate": 0.01,
            "reorder": 0.01,
            "kill": 0.01,
        }
        found["faults"] = FaultPlan(seed=seed, longest_delay=0.005, most=10, **faults)
    return found


class Run(ABC):
    """One run of a plan.

    Attributes:
        findings: What was found that should not be.
        outcomes: How many operations ended how.
        killed: The ranks of the workers that were killed.
    """

    def __init__(self, plan: AnyPlan) -> None:
        self.plan = plan
        self.findings: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.killed: set[int] = set()

    @abstractmethod
    def run_job(self) -> None:
        """Starts the workers, makes the faults, judges what the workers report."""

    def run(self) -> None:
        """Runs it; what was found stands in `findings`."""
        try:
            with (
                no_leaked_threads(),
                no_leaked_children(),
                no_leaked_descriptors(),
                self._directory(),
            ):
                self.run_job()
        except BaseException:
            self.findings.append(f"{traceback.format_exc()}connections: {work.connections()}")

    @contextmanager
    def _directory(self) -> Iterator[None]:
        """Has the workers make their sockets in a directory, and looks what they leave there."""
        with tempfile.TemporaryDirectory(prefix="chaos-") as place:
            os.environ["TMPDIR"] = place
            yield
            left = [*Path(place).iterdir()]
            if len(left) > len(self.killed):  # what is killed cannot take its socket away
                self.findings.append(f"left in the directory of sockets: {left}")

    def judge(self, reports: dict[int, dict[str, Any]]) -> None:
        """Adds up the reports; checks that each call ran once at most, and that it did run."""
        for r, report in reports.items():
            self.findings += report["findings"]
            self.outcomes.update(report["outcomes"])
            twice = [number for number, times in report["ran"].items() if times != 1]
            if twice:
                self.findings.append(f"worker{r}: calls ran more than once: {twice}")
            for to, number in report["confirmed"]:
                callee = reports.get(int(to.removeprefix("worker")))
                if callee is not None and number not in callee["ran"]:
                    self.findings.append(f"worker{r}: {to} answered {number}, which did not run")
        if not self.outcomes["right"]:
            self.findings.append("no operation had a result")


@final
class ClusterRun(Run):
    """A run on one machine, with the transports and the faults that it has."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._plan = plan

    def run_job(self) -> None:
        """Runs the plan in a cluster of processes."""
        plan = self._plan
        with (
            Cluster(plan.n, processes=True, **options_of(plan.network, plan.seed)) as cluster,
            ThreadPoolExecutor(plan.n) as pool,
        ):
            pids = cluster.run(work.prepare)
            working = {
                r: pool.submit(
                    cluster.call, r, work.run, plan.seed, plan.seconds, self._own_faults(r)
                )
                for r in range(plan.n)
            }
            cluster.run(work.begun)
            self._make_faults(cluster, pids)
            for r, each in working.items():
                self._wait(r, each)
            self.judge({r: cluster.call(r, work.report) for r in cluster.living})
            leaving = [pool.submit(cluster.call, r, work.leave) for r in cluster.living]
            for left in leaving:
                self.findings += left.result(3 * work.BOUND)
            began = time.monotonic()
            cluster.close()
            if (seconds := time.monotonic() - began) > EXIT_SECONDS:
                self.findings.append(f"processes took {seconds:.1f} s to end after shutdown")

    def _own_faults(self, rank: int) -> list[work.Fault]:
        """Returns the faults that a worker makes itself."""
        found: list[work.Fault] = []
        for event in self.plan.events:
            if event.rank == rank and event.kind in ("break", "cut"):
                found.append((event.at, event.kind))
                if event.kind == "cut":
                    found.append((event.at + event.seconds, "heal"))
        return sorted(found)

    def _make_faults(self, cluster: Cluster, pids: list[int]) -> None:
        """Kills and stops workers, each at its time."""
        began, stops = time.monotonic(), Counter[int]()  # of a worker, which may overlap
        steps: list[tuple[float, str, int]] = []
        for event in self.plan.events:
            if event.kind in ("kill", "stop"):
                steps.append((event.at, event.kind, event.rank))
            if event.kind == "stop":
                steps.append((event.at + event.seconds, "continue", event.rank))
        for at, kind, rank in sorted(steps):
            time.sleep(max(0.0, began + at - time.monotonic()))
            if kind == "kill":
                self.killed.add(rank)
                cluster.kill(rank)
                continue
            stops[rank] += 1 if kind == "stop" else -1
            os.kill(pids[rank], signal.SIGSTOP if stops[rank] else signal.SIGCONT)

    def _wait(self, rank: int, working: Future[None]) -> None:
        """Waits until a worker has done its part, or was killed in the middle."""
        try:
            working.result(MOST_SECONDS)
        except WorkerLostError:
            if rank not in self.killed:
                raise


def run_seeds(seeds: range) -> int:
    """Runs plans one after the other; returns how many have failed."""
    # A job that stays: what gRPC has for all connections of a process comes and goes with the first
    # and the last one, and would be taken for a leak of whichever run that happens in.
    with Cluster(1, processes=True, **options_of("grpc", 0)) as cluster:
        cluster.run(work.prepare)
        return sum(fails(ClusterRun(plan_of(seed))) for seed in seeds)


def fails(run: Run) -> bool:
    """Runs a plan and prints what became of it; returns whether it failed."""
    began, seed = time.monotonic(), run.plan.seed
    say(f"{run.plan} ...")
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
    run.run()
    faulthandler.cancel_dump_traceback_later()
    counts = ", ".join(f"{count} {name}" for name, count in run.outcomes.most_common())
    verdict = "FAILED" if run.findings else "passed"
    say(f"seed {seed} {verdict} in {time.monotonic() - began:.1f} s: {counts}")
    for finding in run.findings:
        say(f"seed {seed}: {finding}")
    return bool(run.findings)


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(words: str, program: str, run: Callable[[range], int]) -> int:
    """Runs the command; returns its exit code.

    Args:
        words: What it does.
        program: Its file.
        run: Runs plans one after the other; returns how many have failed.
    """
    parser = argparse.ArgumentParser(description=words.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    jobs = min(given.jobs, given.runs)
    if jobs == 1:
        os.environ.pop("XDG_RUNTIME_DIR", None)  # where sockets would be made
        logging.disable(logging.CRITICAL)
        seeds = range(given.seed, given.seed + given.runs * given.step, given.step)
        return int(run(seeds) > 0)
    lanes = []
    for lane in range(jobs):
        runs = len(range(lane, given.runs, jobs))
        numbers = {"--runs": runs, "--seed": given.seed + lane, "--jobs": 1, "--step": jobs}
        arguments = [str(word) for pair in numbers.items() for word in pair]
        lanes.append(subprocess.Popen([sys.executable, program, *arguments]))
    codes = [lane.wait() for lane in lanes]
    say(f"{given.runs} runs from seed {given.seed}: {'FAILED' if any(codes) else 'all passed'}")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", __file__, run_seeds))
