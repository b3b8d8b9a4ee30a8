"""Measures telegrad beside its peers: calls, collectives, gradients, jobs, hosts, growth.

    make bench                                           # makes the peers' environments, then this
    python benchmarks/bench.py [--only calls collectives ddp ...] [--peers telegrad torch ...]
                               [--rounds 3] [--seconds 1] [--quick] [--cores 2]
                               [--minutes 19] [--json FILE] [--write]
    python benchmarks/bench.py --render docs/bench.json   # the documents' tables anew, nothing measured

Each peer runs in a process tree of its own, from its own environment, and all trees on the same cores.
A round runs every peer once and begins with another one than the round before; figures are medians
over the rounds, ratios medians of the ratios of one round. `--write` puts the tables with the gates
and the plots into docs/, and five rows into README.md: `make bench` does. A peer that is not installed, or a
part that cannot be run on this machine, is a line that says so. After `--minutes` each part gets
one round.

What is measured stands in parts.py, how in peers/measure.py, peers/passes.py, peers/jobs.py,
peers/collectives.py, peers/ddp.py and peers/growth.py. `make profile` (call_profile.py) shows where the
time of a call goes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hosts import VARIANTS, CannotError, two_hosts
from machine import ROOT, python_of, say
from parts import GROWTH, GROWTH_MOST, PARTS, Part
from programs import pin, repeat, run
from report import digest, growth_lines, replace, summary
from rounds import Found, Report, about, errors, measure, present, version_of

DOCS = ROOT / "docs"
PLOTS = (
    ("figures", "bench.png", "Every row, a bar for each peer."),
    ("growth", "bench-growth.png", "Calls a second and memory, by the number of workers."),
)
QUICK = {"rounds": 1, "seconds": 0.1}
QUICK_WORKERS = 4  # of growth
TOLERANCE = 1e-3  # float32


def measured(part: Part, peers: list[str], told: argparse.Namespace, until: float) -> Found:
    """Runs all rounds of one part.

    Args:
        part: Which.
        peers: Whose programs.
        told: The command line.
        until: When no round begins any more but the first; on the monotonic clock.

    Raises:
        CannotError: It needs two hosts, and there cannot be any.
    """
    programs = {peer: part.programs[peer] for peer in peers if peer in part.programs}
    rounds = max(
        min(told.rounds, part.rounds or told.rounds), 1 if told.quick else part.least_rounds
    )
    run_all_rounds = partial(measure, rounds=rounds, seconds=told.seconds, until=until)
    if part.between_hosts:
        with two_hosts() as start:
            return run_all_rounds(programs, part.plans, start=start)
    if not part.grows:
        return run_all_rounds(programs, part.plans, start=repeat if part.repeats else run)
    found: Found = {peer: {} for peer in programs}
    for n, plan in zip(GROWTH, part.plans, strict=True):
        some = {peer: each for peer, each in programs.items() if n <= GROWTH_MOST.get(peer, n)}
        if told.quick and n > QUICK_WORKERS:
            break
        for peer, reports in run_all_rounds(some, [plan], start=_run_growth).items():
            found[peer] |= reports
    return found


def _run_growth(peer: str, program: str, arguments: Sequence[str]) -> Report:
    return run(peer, program, ["--library", peer, *arguments])


def differing(parts: dict[str, Found]) -> Iterator[str]:
    """Yields the figures for which peers have found other numbers than telegrad."""
    for part, found in parts.items():
        known: dict[tuple[str, str], list[float]] = {}
        for peer, reports in found.items():
            good = [(p, each) for p, some in reports.items() for each in some if "figures" in each]
            for plan, each in good:
                for name, figure in each["figures"].items():
                    values = figure.get("values")
                    if values is None or name == "parameter server":  # who steps first is chance
                        continue
                    first = known.setdefault((plan, name), values)
                    scale = max(map(abs, first))
                    if not all(
                        math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale)
                        for a, b in zip(first, values, strict=True)
                    ):
                        yield f"{part}, {plan}, {name}: {first} and, {peer}, {values}"


def run_all(told: argparse.Namespace) -> dict[str, Any]:
    """Runs what the command line asks for; returns what goes into the JSON."""
    wanted = list(dict.fromkeys(peer for name in told.only for peer in PARTS[name].programs))
    asked = [peer for peer in wanted if told.peers is None or peer in told.peers]
    peers, missing = present([peer for peer in asked if peer not in VARIANTS], "bench")
    peers += [peer for peer in asked if peer in VARIANTS and "telegrad" in peers]
    here, words = about(told.rounds)
    until = time.monotonic() + 60 * told.minutes
    parts: dict[str, Found] = {}
    skipped: dict[str, str] = {}
    for name in told.only:
        try:
            parts[name] = measured(PARTS[name], peers, told, until)
        except CannotError as reason:
            skipped[name] = str(reason)
            say(f"{name} is not run: {reason}")
    everywhere: dict[str, dict[str, Any]] = {}
    for found in parts.values():
        for peer, reports in found.items():
            everywhere.setdefault(peer, {}).update(reports)
    return {
        "machine": here,
        "words": words,
        "settings": {"rounds": told.rounds, "seconds": told.seconds, "cores": told.cores},
        "versions": {peer: version_of(reports) for peer, reports in everywhere.items()},
        "missing": missing,
        "skipped": skipped,
        "parts": parts,
    }


def write(result: dict[str, Any], path: Path) -> None:
    """Puts tables and plots into the documents; without matplotlib the tables alone."""
    drawn = {"error": "matplotlib is not installed"}
    if python_of("plots").exists():
        drawn = run("plots", "plots.py", [str(path.resolve()), str(DOCS)])
    if "error" in drawn:
        say(f"no plots: {drawn['error']}")
    render(result, drawn.get("drawn", ()))


def render(result: dict[str, Any], drawn: Sequence[str]) -> None:
    """Puts the tables into the documents, and the names of the plots that were drawn."""
    pictures = {name: ["", f"![{words}]({file})"] for name, file, words in PLOTS if file in drawn}
    replace(ROOT / "README.md", "figures", digest(result))
    figures = [*summary(result), *pictures.get("figures", ())]
    replace(DOCS / "performance.md", "figures", figures)
    lines = [*growth_lines(result["parts"]["growth"]), *pictures.get("growth", ())]
    replace(DOCS / "performance.md", "growth", lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = "; ".join(f"{name}: {part.what}" for name, part in PARTS.items())
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help=names)
    everyone = sorted({peer for part in PARTS.values() for peer in part.programs})
    parser.add_argument("--peers", nargs="+", choices=everyone)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="for each figure")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--cores", type=int, default=2, help="that each peer's processes share")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-all.json")
    parser.add_argument("--minutes", type=float, default=19.0, help="then only first rounds begin")
    parser.add_argument("--write", action="store_true", help="docs/, plots, README.md")
    parser.add_argument("--render", type=Path, metavar="JSON", help="writes the tables of this run")
    told = parser.parse_args(arguments)
    usual = QUICK if told.quick else {"rounds": 3, "seconds": 1.0}
    told.rounds = usual["rounds"] if told.rounds is None else told.rounds
    told.seconds = usual["seconds"] if told.seconds is None else told.seconds
    if min(told.rounds, told.seconds, told.cores) <= 0:
        parser.error("--rounds, --seconds and --cores are above 0")
    if told.write and (told.quick or set(told.only) != set(PARTS)):
        parser.error("--write takes a whole run: no --quick, no --only")
    return told


def main() -> None:
    """Runs the command."""
    told = parse()
    if told.render:
        there = [file for _, file, _ in PLOTS if (DOCS / file).exists()]
        render(json.loads(told.render.read_text()), there)
        return
    pin(told.cores)
    began = time.monotonic()
    result = run_all(told)
    told.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write("\n".join(summary(result)) + "\n")
    if "growth" in result["parts"]:
        sys.stdout.write("\n" + "\n".join(growth_lines(result["parts"]["growth"])) + "\n")
    if told.write:
        write(result, told.json)
    say(f"{(time.monotonic() - began) / 60:.1f} minutes; every round is in {told.json}")
    wrong = [*differing(result["parts"])]
    wrong += [line for found in result["parts"].values() for line in errors(found)]
    if wrong:
        raise SystemExit("not every program came to its right end:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
