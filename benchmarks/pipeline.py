"""Measures pipelines beside one process and beside torch's, and their schedules beside their tables.

    python benchmarks/pipeline.py [--only step crossing ideal hosts] [--rounds 3] [--seconds 5]

    step       a mini-batch forward and backward: one process, one process by micro-batches, two stages
    crossing   the processor time of one micro-batch over one boundary of 64 KiB, both ways; and of a step
    ideal      stages that sleep: the length of each schedule beside that of its table
    hosts      two stages that sleep, with a link of 1 Gbit/s between them: the length of each schedule beside
               that of its table with transfers, and that of a table in which stages wait for what they send

The programs are peers/telegrad_pipeline.py and peers/torch_pipeline.py. They run in turns, pinned to two
cores, with one thread of BLAS each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import machine
import programs
from hosts import CannotError, two_hosts
from rounds import Start

PEERS = {
    "step": {"telegrad": "telegrad_pipeline.py", "torch": "torch_pipeline.py"},
    "crossing": {"telegrad": "telegrad_pipeline.py"},
    "ideal": {"telegrad": "telegrad_pipeline.py"},
    "hosts": {"telegrad": "telegrad_pipeline.py"},
}
CORES = 2
LINK = "1gbit"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument(
        "--peers", nargs="+", choices=["telegrad", "torch"], default=["telegrad", "torch"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    return parser.parse_args(arguments)


def medians(reports: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the median of each figure over the rounds.

    >>> medians([{"figures": {"1f1b": {"p50": x}}} for x in (1.0, 5.0, 2.0)])
    {'1f1b': 2.0}
    """
    names = dict.fromkeys(name for each in reports for name in each.get("figures", {}))
    return {
        name: statistics.median(
            each["figures"][name]["p50"] for each in reports if name in each.get("figures", {})
        )
        for name in names
    }


def table(what: str, found: dict[str, dict[str, float]]) -> list[str]:
    r"""Returns the lines of a table: a figure in each row, a peer in each column.

    >>> print(*table("crossing", {"telegrad": {"1f1b": 250.0}}), sep="\n")
    | crossing | telegrad |
    |---|---|
    | 1f1b | 250 |
    """
    names = dict.fromkeys(name for figures in found.values() for name in figures)
    places = 3 if what in ("ideal", "hosts") else 0
    rows = []
    for name in names:
        cells = [f"{each[name]:.{places}f}" if name in each else "" for each in found.values()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return [f"| {what} | {' | '.join(found)} |", "|---" * (1 + len(found)) + "|", *rows]


def measured(what: str, told: argparse.Namespace, start: Start) -> dict[str, dict[str, float]]:
    """Returns the medians of each peer's figures, over rounds in which the peers take turns."""
    peers = {name: each for name, each in PEERS[what].items() if name in told.peers}
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}
    for k in range(told.rounds):
        for name in programs.rotated(list(peers), k):
            found = start(name, peers[name], [what, "--seconds", str(told.seconds)])
            if "error" in found:
                machine.say(f"{name}: {found['error']}")
            reports[name].append(found)
    return {name: medians(each) for name, each in reports.items()}


def main() -> None:
    """Measures and prints the tables."""
    told = parse()
    programs.pin(CORES)
    for what in told.only:
        try:
            with two_hosts(LINK) if what == "hosts" else nullcontext(programs.run) as start:
                lines = table(what, measured(what, told, start))
        except CannotError as error:
            machine.say(f"{what}: {error}")
            continue
        sys.stdout.write("\n".join([*lines, "", ""]))


if __name__ == "__main__":
    main()
