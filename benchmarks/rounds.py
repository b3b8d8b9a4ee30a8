"""Runs the programs of several peers in interleaved rounds, and sums up what they report."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from machine import HERE, machine, python_of, say
from programs import rotated, run

__all__ = [
    "Found",
    "Report",
    "about",
    "errors",
    "measure",
    "median_of",
    "median_of_ratios",
    "present",
    "ratios_of",
    "value_of",
    "version_of",
]

Report: TypeAlias = dict[str, Any]
"""What a program wrote in its last line: `version` and `figures`; or `error`."""
Found: TypeAlias = dict[str, dict[str, list[Report]]]
"""The reports of each peer, by what it ran, one for each round."""
Start: TypeAlias = Callable[[str, str, Sequence[str]], Report]


def measure(
    programs: Mapping[str, str],
    plans: Sequence[tuple[str, Sequence[str]]],
    *,
    rounds: int,
    seconds: float,
    start: Start = run,
    until: float = math.inf,
) -> Found:
    """Runs every peer once in each round of each plan, beginning with another one each round.

    Args:
        programs: Each peer's program.
        plans: What is run: its name, and the arguments of the programs.
        rounds: How often.
        seconds: For each figure; told to the programs.
        start: Runs one program to its end.
        until: When no round begins any more but the first of a plan, on the monotonic clock.
    """
    found: Found = {peer: {} for peer in programs}
    peers = list(programs)
    for name, arguments in plans:
        for r in range(rounds):
            if r and time.monotonic() > until:
                say(f"{name}: {r} of {rounds} rounds; the time is over")
                break
            for peer in rotated(peers, r):
                say(f"round {r + 1} of {rounds}, {name}: {peer}")
                reported = start(peer, programs[peer], [*arguments, "--seconds", str(seconds)])
                found[peer].setdefault(name, []).append(reported)
                if "error" in reported:
                    say(f"  {peer}: {reported['error']}")
    return found


def present(peers: Sequence[str], target: str) -> tuple[list[str], dict[str, str]]:
    """Returns the peers that are installed, and why each of the others is not.

    Args:
        peers: Which.
        target: What of make installs them.
    """
    missing = {peer: reason for peer in peers if (reason := _why_missing(peer, target))}
    for peer, reason in missing.items():
        say(f"{peer} is left out: {reason}")
    return [peer for peer in peers if peer not in missing], missing


def _why_missing(peer: str, target: str) -> str:
    """Returns why a peer cannot be run; nothing where it can."""
    place = python_of(peer).parents[1]
    if peer in HERE or (place / ".installed").exists():
        return ""
    log = place / "install.log"
    said = log.read_text(errors="replace").splitlines() if log.exists() else []
    failed = [line for line in said if line.startswith("ERROR")]
    if failed:
        return f"pip could not install it ({failed[-1].removeprefix('ERROR: ')})"
    return f"it is not installed; `make {target}` does that"


def about(rounds: int) -> tuple[dict[str, Any], str]:
    """Returns what this machine is, and that in a line; warns where it does other things."""
    here = machine()
    if here["load"] > here["cores"] / 2:
        say(f"this machine is busy with other things (load {here['load']:.1f}); mind the ratios")
    cores = f"{here['date']}, {here['cores']} cores of {here['cpu']}"
    return here, f"{cores}, Python {here['python']}; {_median_of(rounds)}"


def _median_of(rounds: int) -> str:
    return "one round" if rounds == 1 else f"median of {rounds} rounds"


def value_of(reported: Report, *where: str) -> float | None:
    """Returns a figure of one report; None where it has none."""
    figure: Any = reported.get("figures", {})
    for key in where:
        figure = figure.get(key) if isinstance(figure, dict) else None
    return float(figure) if isinstance(figure, int | float) else None


def median_of(reports: Sequence[Report], *where: str) -> float | None:
    """Returns the median over the rounds that have the figure."""
    values = [value for each in reports if (value := value_of(each, *where)) is not None]
    return statistics.median(values) if values else None


def median_of_ratios(ours: Sequence[Report], theirs: Sequence[Report], *where: str) -> float | None:
    """Returns the median of our figure over theirs, round by round: what slows one round is in both."""
    ratios = ratios_of(ours, theirs, *where)
    return statistics.median(ratios) if ratios else None


def ratios_of(ours: Sequence[Report], theirs: Sequence[Report], *where: str) -> list[float]:
    """Returns our figure over theirs for each round that has both."""
    pairs = [(value_of(a, *where), value_of(b, *where)) for a, b in zip(ours, theirs, strict=False)]
    return [a / b for a, b in pairs if a is not None and b]


def version_of(reports: Mapping[str, Sequence[Report]]) -> str:
    """Returns the version that a peer's first good report names."""
    versions = [each["version"] for some in reports.values() for each in some if "version" in each]
    return versions[0] if versions else ""


def errors(found: Found) -> Iterator[str]:
    """Yields what went wrong, once for each peer and plan."""
    for peer, reports in found.items():
        for name, some in reports.items():
            said = {str(each["error"]) for each in some if "error" in each}
            if said:
                yield f"{peer}, {name}: {'; '.join(sorted(said))}"
