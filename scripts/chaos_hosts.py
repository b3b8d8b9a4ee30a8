"""Runs jobs on hosts between which links break, by seed: scripts/chaos.py between network namespaces.

    scripts/chaos_hosts.py --runs 100 --seed 1     runs 1 to 100, two at a time
    scripts/chaos_hosts.py --runs 1 --seed 17      run 17 again

Each run makes two or three hosts (tests/hosts/namespaces.py) with two to four workers, which work on
each other as in scripts/chaos.py: numbered calls, arrays, references, streams, gradients, collective
operations. Every second seed encrypts, the others are insecure. Meanwhile the plan of the seed cuts
links, both ways or one way, for less or more time than `lost_after`, has routes swallow packets, ends
the connections of a host, once or again and again while streams move between gRPC and their direct
sockets, loses packets, slows links down, and kills and stops workers. A run fails as one of
scripts/chaos.py does; and if faults that are shorter than `lost_after` lose a worker.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.chaos import AFTER_SECONDS, EXIT_SECONDS, Event, Run, fails, main  # noqa: E402
from tests.chaos import work  # noqa: E402
from tests.conftest import Programs  # noqa: E402
from tests.faults.hostile.hostile_job import HostileJob  # noqa: E402
from tests.hosts.links import numbered  # noqa: E402
from tests.hosts.namespaces import Hosts  # noqa: E402

LOST_AFTER = 3.0
LEAST_SECONDS = 3.0  # of work
AGAIN_SECONDS = (0.5, 2.0)  # for which connections are ended again and again
PAUSES = (0.02, 0.05, 0.1)  # from one end of all connections to the next: about a handshake
# A link that is back brings the next packet when TCP sends it again: after up to as long as it was
# cut. So half of the bound may pass with a cut of a quarter.
SHORT, LONG = (0.05, 0.25), (1.3, 1.8)  # shares of LOST_AFTER
# Of all faults that interrupt a link, together: with more it may be silent for the bound.
MOST_INTERRUPTED = 0.7 * LOST_AFTER

OF_WORKERS: Final = ("kill", "stop", "short stop")
OF_HOSTS: Final = (
    *("cut", "short cut", "one-way cut", "short one-way cut", "blackhole", "short blackhole"),
    *("end connections", "end connections again", "lose packets", "slow down"),
)
# Faults that interrupt nothing for long.
PASSING: Final = ("end connections", "lose packets", "slow down")


@dataclass(frozen=True)
class HostsPlan:
    """What one seed means: hosts, workers on them, encryption or none, and the faults.

    Attributes:
        seed: The number from which all is drawn.
        places: The host of each worker.
        insecure: Whether the workers do without encryption.
        events: The faults.
        harmless: Whether no worker may be lost by them.
        pause: Seconds from one end of all connections to the next.
        for_ever: Whether streams move to direct sockets however many of these have broken.
    """

    seed: int
    places: tuple[int, ...]
    insecure: bool
    events: tuple[Event, ...]
    harmless: bool
    pause: float
    for_ever: bool

    @property
    def seconds(self) -> float:
        """How long workers work."""
        ends = [event.at + event.seconds for event in self.events]
        return max(LEAST_SECONDS, *(end + AFTER_SECONDS for end in ends))

    def __str__(self) -> str:
        faults = "; ".join(map(str, self.events)) or "no faults"
        how = "insecure" if self.insecure else "TLS"
        how += ", harmless" if self.harmless else ""
        how += ", moves for ever" if self.for_ever else ""
        return f"seed {self.seed}: workers on hosts {self.places}, {how}; {faults}"


def plan_of(seed: int) -> HostsPlan:
    """Draws a plan: one to four faults; half of the plans only have some that lose nobody."""
    draw = random.Random(f"chaos of hosts {seed}")
    n_hosts = draw.choice([2, 3])
    places = [*range(n_hosts)] + [draw.randrange(n_hosts) for _ in range(draw.randrange(2))]
    mild = draw.random() < 0.5
    kinds = [kind for kind in (*OF_WORKERS, *OF_HOSTS) if not mild or _is_mild(kind)]
    events = [_event(draw, kind, n_hosts, len(places)) for kind in _chosen(draw, kinds)]
    interrupted = sum(event.seconds for event in events if event.kind not in PASSING)
    harmless = mild and interrupted <= MOST_INTERRUPTED
    ordered = tuple(sorted(events, key=lambda event: event.at))
    return HostsPlan(
        seed=seed,
        places=tuple(places),
        insecure=seed % 2 == 0,
        events=ordered,
        harmless=harmless,
        pause=draw.choice(PAUSES),
        for_ever=draw.random() < 0.5,
    )


def _is_mild(kind: str) -> bool:
    return kind.startswith("short ") or kind in (*PASSING, "end connections again")


def _chosen(draw: random.Random, kinds: list[str]) -> list[str]:
    return draw.sample(kinds, draw.randrange(1, 5))


def _event(draw: random.Random, kind: str, n_hosts: int, n: int) -> Event:
    at = draw.uniform(0.2, 2.0)
    short = kind.startswith("short ")
    seconds = draw.uniform(*(SHORT if short else LONG)) * LOST_AFTER
    if kind in ("kill", "end connections"):
        seconds = 0.0
    elif kind == "end connections again":
        seconds = draw.uniform(*AGAIN_SECONDS)
    elif kind in PASSING:
        seconds = draw.uniform(0.5, 3.0)
    whom = "worker" if kind in OF_WORKERS else "host"
    number = draw.randrange(n if kind in OF_WORKERS else n_hosts)
    return Event(at, kind.removeprefix("short "), number, seconds, whom)


@final
class Links:
    """The faults of hosts, as they begin and end; some may overlap, and the last one ends them."""

    def __init__(self, hosts: Hosts, n: int, seed: int) -> None:
        self.ended = 0
        self._hosts, self._n = hosts, n
        self._draw = random.Random(f"links {seed}")
        self._depth: Counter[tuple[str, int]] = Counter()

    def begin(self, kind: str, host: int) -> None:
        """Begins a fault of a host, or of what it sends to the next host."""
        self._depth[kind, host] += 1
        if self._depth[kind, host] > 1:
            return
        hosts, to = self._hosts, (host + 1) % self._n
        if kind == "cut":
            hosts.cut(host)
        elif kind == "one-way cut":
            hosts.cut_one_way(host, to)
        elif kind == "blackhole":
            hosts.blackhole(host, to)
        elif kind == "lose packets":
            hosts.lose(host, self._draw.choice([0.01, 0.03]))
        elif kind == "slow down":
            hosts.limit(host, self._draw.choice(["20mbit", "100mbit"]))

    def end(self, kind: str, host: int) -> None:
        """Ends it."""
        self._depth[kind, host] -= 1
        if self._depth[kind, host] > 0:
            return
        hosts, to = self._hosts, (host + 1) % self._n
        if kind == "cut":
            hosts.heal(host)
        elif kind == "one-way cut":
            hosts.heal_one_way(host, to)
        elif kind == "blackhole":
            hosts.heal_blackhole(host, to)
        elif kind == "lose packets":
            hosts.unfilter(host)
        elif kind == "slow down":
            hosts.unlimit(host)

    def end_connections(self, host: int) -> None:
        """Ends the connections that a host has now."""
        self.ended += self._hosts.end_present_connections(host)


@final
class HostsRun(Run):
    """A run between hosts."""

    def __init__(self, plan: HostsPlan) -> None:
        super().__init__(plan)
        self._plan = plan
        self._names = [f"worker{r}" for r in range(len(plan.places))]

    def run_job(self) -> None:
        """Runs the plan in processes on hosts of their own."""
        plan, names = self._plan, self._names
        options: dict[str, Any] = {"timeout": work.CALL_SECONDS, "insecure": plan.insecure}
        with (
            tempfile.TemporaryDirectory(prefix="chaos-output-") as directory,
            Hosts.made(max(plan.places) + 1) as hosts,
            HostileJob(
                Programs(Path(directory)),
                names,
                lost_after=LOST_AFTER,
                bridge=hosts,
                places=plan.places,
                options=dict.fromkeys(names, options),
            ) as job,
        ):
            job.run(work.prepare)
            job.run(work.count_streams)
            job.run(numbered.count_moves, plan.for_ever)
            for name in names:
                job.start(name, work.run, plan.seed, plan.seconds, [])
            self._make_faults(job, Links(hosts, max(plan.places) + 1, plan.seed))
            for name in job.living:
                job.answer(name)
            for moves in job.run(numbered.moves).values():
                self.outcomes.update({f"moves {ended}": n for ended, n in moves.items()})
            self._judge_losses(reports := job.run(work.report))
            self.judge({names.index(name): report for name, report in reports.items()})
            for found in job.run(work.leave).values():
                self.findings += found
            self._end(job)

    def _make_faults(self, job: HostileJob, links: Links) -> None:
        """Makes the faults, each at its time."""
        began, stops, pause = time.monotonic(), Counter[int](), self._plan.pause
        steps: list[tuple[float, int, str, int]] = []
        for event in self._plan.events:
            if event.kind == "end connections again":
                times = int(event.seconds / pause)
                steps += [
                    (event.at + i * pause, 0, "end connections", event.rank) for i in range(times)
                ]
                continue
            steps.append((event.at, 0, event.kind, event.rank))
            if event.seconds:
                steps.append((event.at + event.seconds, 1, event.kind, event.rank))
        for at, ends, kind, number in sorted(steps):
            time.sleep(max(0.0, began + at - time.monotonic()))
            if kind == "kill":
                self.killed.add(number)
                job.living.remove(self._names[number])
                job.signal(self._names[number], signal.SIGKILL)
            elif kind == "stop":
                stops[number] += -1 if ends else 1
                if number not in self.killed:
                    stopped = signal.SIGSTOP if stops[number] else signal.SIGCONT
                    job.signal(self._names[number], stopped)
            elif kind == "end connections":
                links.end_connections(number)
            elif ends:
                links.end(kind, number)
            else:
                links.begin(kind, number)
        if any(each.kind.startswith("end") for each in self._plan.events) and not links.ended:
            self.findings.append("no connection was there to be ended")

    def _judge_losses(self, reports: dict[str, dict[str, Any]]) -> None:
        """Checks that nobody was lost by faults that are shorter than the bound."""
        for name, report in reports.items():
            if self._plan.harmless:
                self.findings += [f"{name} has lost {loss}" for loss in report["losses"]]
                failed = {*report["outcomes"]} - {"right", "CallTimeoutError"}
                self.findings += [f"{name} has had {failed}"] if failed else []
            self.outcomes.update({f"{n} streams": x for n, x in report["streams"].items()})

    def _end(self, job: HostileJob) -> None:
        """Checks that processes end after shutdown."""
        job.begin("leave", job.living)
        job.end(job.living)
        for name in job.living:
            if not job.wait_for_exit(name, EXIT_SECONDS):
                self.findings.append(f"{name} took {EXIT_SECONDS:g} s to end after shutdown")


def run_seeds(seeds: range) -> int:
    """Runs plans one after the other; returns how many have failed."""
    return sum(fails(HostsRun(plan_of(seed))) for seed in seeds)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", __file__, run_seeds))
