"""Compares the working tree with a commit, in about six minutes and without any peer.

    make bench-quick BASE=a61bff9                  # without BASE: HEAD, for what is not committed yet
    python benchmarks/quick.py [--base HEAD] [--only calls collectives ...] [--rounds 5]
                               [--seconds 0.4] [--cores 2] [--fail]

It measures each row of parts.py that needs no second host. A round runs both trees, one after the
other, and begins with the other one than the round before. The ratio is the median of the rounds'
ratios, the working tree's figure over the commit's; the lowest and the highest of them show how far
noise goes. A row that is slower by more than 10 % is marked; with `--fail` the command then exits
with 1, and also where a figure is missing. Two equal trees (HEAD, and nothing changed) show the
noise alone.

Each tree runs its own programs of benchmarks/peers. The layout and the names of the package change
from commit to commit, and these programs change with them, so those of the working tree would break
on an older commit. In return their names, command lines and the form of their reports have to stay,
and a change of what a program does shows in the ratio as well. `git archive` writes the commit
into a temporary directory; unlike `git worktree` it leaves nothing in the repository when the
command is killed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from machine import ROOT, say
from parts import PARTS, ROWS, SLACK, Row
from programs import pin, repeat, run
from report import NONE, cell
from rounds import Found, Report, about, errors, measure, ratios_of

BASE, NOW = "base", "now"
MEASURED = [
    name for name in dict.fromkeys(row.part for row in ROWS) if not PARTS[name].between_hosts
]


def git(*arguments: str) -> bytes:
    """Returns what git writes; ends the program with git's message where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode(errors="replace").strip())
    return done.stdout


def check_out(commit: str, place: Path) -> None:
    """Writes the package and the benchmarks of a commit into a directory."""
    archive = git("archive", commit, "telegrad", "benchmarks")
    subprocess.run(["tar", "-x", "-C", place], input=archive, check=True)


def compare(trees: Mapping[str, Path], told: argparse.Namespace) -> dict[str, Found]:
    """Runs all rounds of all parts; returns the reports of both trees by part."""
    found = {}
    for name in told.only:
        part = PARTS[name]
        programs = dict.fromkeys(trees, part.programs["telegrad"])
        found[name] = measure(
            programs,
            part.plans,
            rounds=told.rounds,
            seconds=told.seconds,
            start=partial(run_one, trees, repeat if part.repeats else run),
        )
    return found


def run_one(
    trees: Mapping[str, Path],
    runner: Callable[..., Report],
    name: str,
    program: str,
    arguments: Sequence[str],
) -> Report:
    """Runs a program of the tree that has this name."""
    return runner("telegrad", program, arguments, tree=trees[name])


def ratios(parts: Mapping[str, Found], row: Row) -> list[float]:
    """Returns the working tree's figure over the commit's, for each round that has both."""
    found = parts[row.part]
    now, base = (found[tree].get(row.plan, ()) for tree in (NOW, BASE))
    return ratios_of(now, base, *row.where)


def slower(row: Row, ratio: float) -> bool:
    """Tells whether a row is slower by more than 10 %."""
    return ratio < 1 - SLACK if row.where[-1] == "per_second" else ratio > 1 + SLACK


def lines(parts: Mapping[str, Found], commit: str) -> Iterator[str]:
    """Yields the table, as Markdown."""
    yield f"|  | {commit} | now | ratio | lowest to highest |  |"
    yield "|---|--:|--:|--:|--:|---|"
    for row in [row for row in ROWS if row.part in parts]:
        cells = [cell(parts[row.part], row, tree) for tree in (BASE, NOW)]
        if found := ratios(parts, row):
            ratio = statistics.median(found)
            mark = "slower" if slower(row, ratio) else ""
            cells += [f"{ratio:.2f}", f"{min(found):.2f} to {max(found):.2f}", mark]
        else:
            cells += [NONE, NONE, "not measured"]
        yield "| " + " | ".join([row.label, *cells]) + " |"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="HEAD", help="the commit to compare with")
    parser.add_argument("--only", nargs="+", choices=MEASURED, default=MEASURED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each figure")
    parser.add_argument("--cores", type=int, default=2, help="that each tree's processes share")
    parser.add_argument("--fail", action="store_true", help="exits with 1 where a row is slower")
    told = parser.parse_args(arguments)
    if min(told.rounds, told.seconds, told.cores) <= 0:
        parser.error("--rounds, --seconds and --cores are above 0")
    return told


def main() -> None:
    """Runs the command."""
    told = parse()
    pin(told.cores)
    commit = git("log", "-1", "--format=%h", told.base, "--").decode().strip()
    _, words = about(told.rounds)
    with tempfile.TemporaryDirectory(prefix="bench-quick-") as directory:
        check_out(commit, Path(directory))
        parts = compare({BASE: Path(directory), NOW: ROOT}, told)
    table = [*lines(parts, commit)]
    sys.stdout.write("\n".join([f"{words}.", "", *table]) + "\n")
    for line in [line for found in parts.values() for line in errors(found)]:
        say(line)
    if told.fail and any(row.endswith((" slower |", " not measured |")) for row in table):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
