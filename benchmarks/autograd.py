"""Measures telegrad's gradients beside torch's, HIPS autograd's and NumPy by hand, all in one run.

    make bench-autograd                                   # makes the peers' environments, then this
    python benchmarks/autograd.py [--peers telegrad torch ...] [--cases chain ...] [--rounds 21]
                                  [--seconds 0.05] [--json bench-autograd.json]

Each peer runs in a process of its own, from its own environment (`.venv-bench-torch` and so on; one
that is not there is left out), with one thread for the arrays. A round times every peer once, one
after the other, and begins with another one than the round before; `--seconds` is how long the
slowest of them takes for it. What is shown is the median over the rounds, and the median of the
ratios of one round. Before anything is timed the gradients of all peers are compared.

    perceptron   a step of a 784-1024-1024-10 network, batch of 128, float32: forward, backward,
                 SGD with momentum (benchmarks/peers/perceptron.py has it by hand)
    chain        2,000 operations on ten numbers one after the other, forward and backward
    lstm, small_cnn, transformer_block, attention_step, attention_step_without_weights
                 steps of networks of modules, float32, SGD with momentum (benchmarks/peers/steps.py)
    the others   benchmarks/peers/small_functions.py

Peak memory is that of a process of its own, by what the kernel says was resident at most while the
case was made and run three times, over what was resident before: the same for all libraries,
whatever allocates. There each block of 64 KiB or more has pages of its own, which go back when it is
freed (glibc's MALLOC_MMAP_THRESHOLD_), and NumPy asks for no huge ones: what is counted is what
is in use.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from machine import machine, python_of, say
from programs import PEERS, Repeater, rotated

sys.path.insert(0, str(PEERS))

import small_functions  # what the peers have
import steps

NAMES = ("telegrad", "torch", "autograd", "numpy")
CASES = (
    *("perceptron", "chain", *steps.NETWORKS),
    *[each.__name__ for each in small_functions.FUNCTIONS],
)
MEMORY = ("perceptron", "attention_step", "attention_step_without_weights")
CHAIN_OPERATIONS = 2000
TOLERANCE = dict.fromkeys(("perceptron", *steps.NETWORKS), 1e-3)  # float32
# Where peak memory is measured: what is freed is not resident any more.
EXACT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "NUMPY_MADVISE_HUGEPAGE": "0"}
Found = dict[str, dict[str, Any]]


def started(name: str, more: Mapping[str, str] = MappingProxyType({})) -> Repeater:
    """Starts a peer's program."""
    return Repeater(name, f"{name}_gradients.py", more=more)


def measure(peers: Sequence[Repeater], case: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Returns the seconds of one repetition, for each round and peer, of those that have the case."""
    answers = {peer.name: peer.ask(case=case) for peer in peers}
    errors = {
        name: answer["error"]
        for name, answer in answers.items()
        if "error" in answer and not answer.get("missing")
    }
    able = [peer for peer in peers if "error" not in answers[peer.name]]
    values = {peer.name: answers[peer.name]["values"] for peer in able}
    errors |= dict.fromkeys(differing(values, TOLERANCE.get(case, 1e-9)), "another gradient")
    once = max((peer.ask(case=case, number=3)["seconds"] / 3 for peer in able), default=seconds)
    number = max(1, round(seconds / once))
    found: dict[str, Any] = {"seconds": {peer.name: [] for peer in able}, "errors": errors}
    for r in range(rounds):
        for peer in rotated(able, r):
            taken = peer.ask(case=case, number=number)["seconds"]
            found["seconds"][peer.name].append(taken / number)
    if case in MEMORY:
        found["bytes"] = {peer.name: peak_memory(peer.name, case) for peer in able}
    return found


def peak_memory(name: str, case: str) -> int:
    """Returns the bytes that a case keeps resident at most, in a process of its own."""
    peer = started(name, EXACT_MEMORY)
    try:
        found: int = peer.ask(case=case, memory=True)["bytes"]
    finally:
        peer.close()
    return found


def differing(values: dict[str, list[list[float]]], tolerance: float) -> Iterator[str]:
    """Yields the peers whose gradients are not those of most others, as far as was sent."""

    def near(a: list[list[float]], b: list[list[float]]) -> bool:
        pairs = [
            (x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True)
        ]
        scale = max(abs(x) for x, _ in pairs)
        return all(
            math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance * scale) for x, y in pairs
        )

    for name, own in values.items():
        others = [each for other, each in values.items() if other != name]
        if others and 2 * sum(near(own, each) for each in others) < len(others):
            yield name


def lines(found: Found, names: Sequence[str]) -> Iterator[str]:
    """Yields the table, as Markdown: microseconds, and how telegrad stands to the others."""
    others = [name for name in names if name != "telegrad"]
    yield "| us | " + " | ".join([*names, *[f"telegrad / {name}" for name in others]]) + " |"
    yield "|---" * (1 + len(names) + len(others)) + "|"
    for case, figures in found.items():
        seconds = figures["seconds"]
        cells = [
            f"{1e6 * statistics.median(seconds[n]):,.0f}" if n in seconds else "–" for n in names
        ]
        cells += [ratio(seconds.get("telegrad"), seconds.get(name)) for name in others]
        yield f"| {case.replace('_', ' ')} | " + " | ".join(cells) + " |"
        if "bytes" in figures:
            counts = [figures["bytes"].get(name) for name in names]
            cells = ["–" if count is None else f"{count / 2**20:,.1f}" for count in counts]
            own = figures["bytes"].get("telegrad")
            for name in others:
                theirs = figures["bytes"].get(name)
                cells.append(f"{own / theirs:.2f}" if own and theirs else "–")
            yield f"| {case.replace('_', ' ')}, peak MiB | " + " | ".join(cells) + " |"


def ratio(ours: list[float] | None, theirs: list[float] | None) -> str:
    """Returns the median of the rounds' ratios."""
    if not ours or not theirs:
        return "–"
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.05, help="of the slowest, each round")
    parser.add_argument("--json", type=Path, help="where the figures of every round go")
    told = parser.parse_args()
    here = machine()
    for name in [name for name in told.peers if not python_of(name).exists()]:
        say(f"{name} is left out: {python_of(name)} is not there; `make bench-autograd` makes it")
        told.peers.remove(name)
    peers = [started(name) for name in told.peers]
    found: Found = {}
    try:
        for case in told.cases:
            say(case)
            found[case] = measure(peers, case, told.rounds, told.seconds)
            for name, error in found[case]["errors"].items():
                say(f"  {name}: {error}")
    finally:
        for peer in peers:
            peer.close()
    sys.stdout.write(f"{here['date']}, {here['cores']} cores of {here['cpu']}, ")
    sys.stdout.write(f"Python {here['python']}; median of {told.rounds} rounds\n\n")
    sys.stdout.write("\n".join(lines(found, told.peers)) + "\n")
    if "chain" in found:
        for name, rounds in found["chain"]["seconds"].items():
            each = 1e6 * statistics.median(rounds) / CHAIN_OPERATIONS
            sys.stdout.write(f"{name}: {each:.1f} us an operation of the chain\n")
    if told.json:
        settings = {"rounds": told.rounds, "seconds": told.seconds}
        result = {"machine": here, "settings": settings, "cases": found}
        told.json.write_text(json.dumps(result, indent=1) + "\n")
    if any(figures["errors"] for figures in found.values()):
        raise SystemExit("not every peer did what it was asked; see above")


if __name__ == "__main__":
    main()
