"""Shows where the microseconds of one empty call go, on the caller and on the callee.

    make profile                                                   # the transport that workers choose
    python benchmarks/call_profile.py [--transport grpc|local|inproc] [--calls 2000] [--write]

Two workers on this machine; one calls the other, one call after the other. The first run is as it is:
its median, the processor time of each thread, and how often each was woken. In the second each function
of the path notes when it began and ended (call_points.py); both processes have the same clock, so
what passes between them is a difference. The figures are medians over all calls, less what a note takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import call_profile  # this module by its name: what runs is called __main__, and calls go by name
from call_points import CALLEE, CALLER, LAST, PATH, Events, cost, install, walk
from machine import ROOT, machine, say
from report import replace

from telegrad import doctor, rpc
from telegrad.testing import Cluster

WARM_UP = 300
LEAST_SHARE = 0.5  # of the calls that pass a point; a rarer one is no part of the path
TRANSPORTS = ("grpc", "local", "inproc")

EVENTS: Events = []


@dataclass(frozen=True, slots=True)
class Thread:
    """What a thread has done so far.

    Attributes:
        name: Python's name, or the kernel's.
        nanoseconds: On a processor.
        woken: How often it had waited and went on.
    """

    name: str
    nanoseconds: int
    woken: int


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of calls brought.

    Attributes:
        transport: What carried them.
        spans: Of each call, when it began and ended.
        events: By side.
        threads: By side, before and after.
        missing: Functions of the path that are not there.
    """

    transport: str
    spans: list[tuple[int, int]]
    events: dict[str, Events]
    threads: dict[str, tuple[list[Thread], list[Thread]]]
    missing: list[str]

    @property
    def microseconds(self) -> float:
        """The median of the calls."""
        return statistics.median(ended - began for began, ended in self.spans) / 1e3


# What the callee runs.


def nothing() -> None:
    """Returns at once."""


def threads() -> list[tuple[str, int, int]]:
    """Returns what the threads of this process have done."""
    names = {each.native_id: each.name for each in threading.enumerate()}
    found = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda path: int(path.name)):
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            status = dict(line.split(":", 1) for line in (task / "status").open())
            name = names.get(int(task.name)) or f"{(task / 'comm').read_text().strip()} (native)"
        except OSError:  # it has ended
            continue
        found.append((name, nanoseconds, int(status["voluntary_ctxt_switches"])))
    return found


def events() -> Events:
    """Returns what was noted here, and forgets it."""
    noted = list(EVENTS)
    EVENTS.clear()
    return noted


# The caller.


def calls(n: int) -> tuple[list[tuple[int, int]], list[list[Thread]], list[list[Thread]]]:
    """Makes so many calls; returns when, and the threads here and there, before and after."""
    for _ in range(WARM_UP):
        rpc.rpc_sync("worker1", call_profile.nothing)
    spans, here, there = [], [], []
    clock = time.perf_counter_ns

    def look() -> None:
        there.append([Thread(*each) for each in rpc.rpc_sync("worker1", call_profile.threads)])
        here.append([Thread(*each) for each in threads()])

    look()
    rpc.rpc_sync("worker1", call_profile.events)
    call_profile.events()
    for _ in range(n):
        began = clock()
        rpc.rpc_sync("worker1", call_profile.nothing)
        spans.append((began, clock()))
    look()
    return spans, here, there


def options_of(transport: str | None) -> rpc.RpcOptions:
    """Returns what has workers take a transport."""
    return rpc.RpcOptions(token=secrets.token_hex(16), direct=transport != "grpc")


def serve(meet: str, options: rpc.RpcOptions, noting: bool) -> None:
    """The callee: serves until the caller shuts down."""
    if noting:
        install(call_profile.EVENTS)
    rpc.init_rpc("worker1", rank=1, world_size=2, init_method=meet, options=options)
    rpc.shutdown()


def between_processes(transport: str | None, n: int, *, noting: bool) -> Run:
    """Runs the calls between two processes."""
    missing = install(call_profile.EVENTS) if noting else []
    options = options_of(transport)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        meet = f"file://{directory}/store"
        callee = spawn.Process(target=call_profile.serve, args=(meet, options, noting), daemon=True)
        callee.start()
        rpc.init_rpc("worker0", rank=0, world_size=2, init_method=meet, options=options)
        spans, here, there = calls(n)
        noted = {
            CALLER: call_profile.events(),
            CALLEE: [(when, where) for when, where in rpc.rpc_sync("worker1", call_profile.events)],
        }
        carried = doctor.examine().pairs[0].transport
        rpc.shutdown()
        callee.join()
    by_side = {CALLER: (here[0], here[1]), CALLEE: (there[0], there[1])}
    return Run(carried, spans, noted, by_side, missing)


def in_one_process(n: int, *, noting: bool) -> Run:
    """Runs the calls between two agents of this process."""
    missing = install(call_profile.EVENTS) if noting else []
    with Cluster(2) as cluster:
        spans, here, _ = cluster.call(0, call_profile.calls, n)
        noted = call_profile.events()
    return Run(
        "inproc", spans, {CALLER: noted, CALLEE: noted}, {"both": (here[0], here[1])}, missing
    )


# The tables.


def phases(found: Run, note: float) -> list[tuple[str, str, float]]:
    """Returns side, phase and microseconds, in the order of the path.

    Args:
        found: A run in which functions took notes.
        note: What one takes, in nanoseconds.
    """
    sorted_events = {side: sorted(some) for side, some in found.events.items()}
    path = [point for point in PATH if point.over in ("", found.transport)]
    passed = [walk(began, ended, sorted_events, path) for began, ended in found.spans]
    last, rows, skipped = [0] * len(passed), [], []
    for place, point in enumerate(path):
        times = [times[place] for times in passed]
        if sum(time is not None for time in times) < LEAST_SHARE * len(times):
            skipped.append(point.phase)
            continue
        offsets = [
            before if time is None else time - began
            for before, time, (began, _) in zip(last, times, found.spans, strict=True)
        ]
        phase = " + ".join([*skipped, point.phase])
        rows.append((point.side, phase, _median_step(last, offsets, note)))
        last, skipped = offsets, []
    ends = [ended - began for began, ended in found.spans]
    return [*rows, (CALLER, LAST, _median_step(last, ends, note))]


def _median_step(before: Sequence[int], after: Sequence[int], note: float) -> float:
    steps = [b - a for a, b in zip(before, after, strict=True)]
    return max(0.0, statistics.median(steps) - note) / 1e3


def lines_of(plain: Run, noted: Run, note: float) -> Iterator[str]:
    """Yields both tables, as Markdown."""
    rows = phases(noted, note)
    total = sum(microseconds for _, _, microseconds in rows)
    yield f"An empty call over `{plain.transport}`: {plain.microseconds:,.0f} us, median of "
    yield f"{len(plain.spans):,} calls one after the other; {noted.microseconds:,.0f} us with notes."
    yield ""
    yield "| | phase | us | share |"
    yield "|---|---|--:|--:|"
    for side, phase, microseconds in rows:
        yield f"| {side} | {phase} | {microseconds:.1f} | {microseconds / total:.0%} |"
    for side in (CALLER, CALLEE):
        both = sum(microseconds for where, _, microseconds in rows if where == side)
        yield f"| {side} | all of these | {both:.1f} | {both / total:.0%} |"
    yield ""
    yield "| | thread | processor time, us a call | woken, times a call |"
    yield "|---|---|--:|--:|"
    for side, (before, after) in plain.threads.items():
        for name, nanoseconds, woken in spent(before, after, len(plain.spans)):
            yield f"| {side} | {name} | {nanoseconds / 1e3:.1f} | {woken:.2f} |"


def spent(
    before: Sequence[Thread], after: Sequence[Thread], n: int
) -> Iterator[tuple[str, float, float]]:
    """Yields what the threads did for each call, those of one name together, the busiest first."""
    sums: dict[str, list[float]] = {}
    for sign, some in ((-1, before), (1, after)):
        for thread in some:
            one = sums.setdefault(thread.name, [0.0, 0.0])
            one[0] += sign * thread.nanoseconds / n
            one[1] += sign * thread.woken / n
    for name, (nanoseconds, woken) in sorted(sums.items(), key=lambda item: -item[1][0]):
        if nanoseconds >= 100 or woken >= 0.01:
            yield name, nanoseconds, woken


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transport", choices=TRANSPORTS, help="else what the workers choose")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    told = parser.parse_args()
    plain, noted = [
        in_one_process(told.calls, noting=noting)
        if told.transport == "inproc"
        else between_processes(told.transport, told.calls, noting=noting)
        for noting in (False, True)
    ]
    if told.transport not in (None, plain.transport):
        say(f"the workers took {plain.transport}, and not {told.transport}")
    for function in noted.missing:
        say(f"{function} is not there; its phase is one with that behind it")
    here = machine()
    words = f"{here['date']}, {here['cores']} cores of {here['cpu']}, Python {here['python']}."
    lines = [words, "", *lines_of(plain, noted, cost())]
    sys.stdout.write("\n".join(lines) + "\n")
    if told.write:
        replace(ROOT / "docs" / "performance.md", f"profile of {plain.transport}", lines)


if __name__ == "__main__":
    main()
