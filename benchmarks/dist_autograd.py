"""Measures telegrad's distributed autograd beside torch's, both in one run on one machine.

    make bench-dist-autograd                            # makes torch's environment, then this
    python benchmarks/dist_autograd.py [--peers telegrad torch] [--rounds 3] [--seconds 2]
                                       [--workers 2 4 8] [--json bench-dist-autograd.json]

Each peer runs in a process tree of its own, from its own environment (`.venv-bench-torch`; it is left
out where that is not there). A round runs every peer once, and begins with another one than the round
before. The table shows the median over the rounds, and how telegrad stands to torch. Before anything
is timed each peer tells some numbers of its gradients or new parameters, which must agree.

    step         two calls of a 256 by 256 layer on another worker, batch of 32, backward, and a step
                 of SGD by DistributedOptimizer, in float32
    tensors      1 to 1,000 tensors of 16 numbers in one call, as many in its result, and backward
    chain        through such a layer on each of the other workers, one calling the next, and backward

The last lines say how the time grows: what each more worker of the chain takes, and each more tensor,
from step to step of the table; where they are equal it grows linearly. Workers share the cores.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from machine import say
from programs import PEERS
from rounds import Found, about, errors, measure, median_of, present, version_of

sys.path.insert(0, str(PEERS))

import passes

NAMES = ("telegrad", "torch")
TOLERANCE = 1e-3  # float32
Row = tuple[str, str, str]
"""A label, what was run, and the name of the figure."""


def rows(workers: Sequence[int]) -> list[Row]:
    """Returns the rows of the table."""
    tensors = [(f"{n:,} tensors", "one other", f"tensors {n}") for n in passes.TENSORS]
    chains = [(f"chain of {n} workers", f"chain of {n}", "chain") for n in workers]
    return [("step", "one other", "step"), *tensors, *chains]


def lines(found: Found, workers: Sequence[int]) -> Iterator[str]:
    """Yields the table, as Markdown: microseconds."""
    peers = list(found)
    compared = "telegrad" in peers and "torch" in peers
    versions = [version_of(found[peer]) for peer in peers]
    header = ["p50, us", *(f"{peer} {v}".strip() for peer, v in zip(peers, versions, strict=True))]
    header += ["telegrad / torch"] * compared
    yield "| " + " | ".join(header) + " |"
    yield "|---" * len(header) + "|"
    for label, plan, figure in rows(workers):
        values = {peer: median_of(found[peer].get(plan, ()), figure, "p50") for peer in peers}
        cells = ["–" if value is None else f"{value:,.0f}" for value in values.values()]
        if compared:
            ours, theirs = values["telegrad"], values["torch"]
            cells.append(f"{ours / theirs:.2f}" if ours and theirs else "–")
        yield "| " + " | ".join([label, *cells]) + " |"


def growth(found: Found, workers: Sequence[int]) -> Iterator[str]:
    """Yields what each more worker, and each more tensor, takes from one row to the next."""
    for peer, reports in found.items():
        for what, counts, plan, figure in (
            ("worker of the chain", workers, "chain of {}", "chain"),
            ("tensor", passes.TENSORS, "one other", "tensors {}"),
        ):
            known = [
                (n, value)
                for n in counts
                if (value := median_of(reports.get(plan.format(n), ()), figure.format(n), "p50"))
            ]
            each = [
                f"{(b - a) / (m - n):,.0f} us ({n} to {m})" for (n, a), (m, b) in pairwise(known)
            ]
            if each:
                yield f"{peer}, each more {what}: {', '.join(each)}"


def differing(found: Found, workers: Sequence[int]) -> Iterator[str]:
    """Yields the rows in which the peers' numbers differ."""
    for label, plan, figure in rows(workers):
        values = [
            reported["figures"][figure]["values"]
            for reports in found.values()
            for reported in reports.get(plan, ())
            if "figures" in reported
        ]
        for other in values[1:]:
            scale = max(map(abs, values[0]))
            if not all(
                math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale)
                for a, b in zip(values[0], other, strict=True)
            ):
                yield f"{label}: {values[0]} and {other}"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8], help="of the chains")
    parser.add_argument("--json", type=Path, help="where the figures of every round go")
    told = parser.parse_args()
    peers, _ = present(told.peers, "bench-dist-autograd")
    if not peers:
        parser.error("none of these peers is installed")
    here, words = about(told.rounds)
    plans = [("one other", ["--workers", "2"])]
    plans += [(f"chain of {n}", ["--workers", str(n), "--chain"]) for n in told.workers]
    programs = {peer: f"{peer}_passes.py" for peer in peers}
    found = measure(programs, plans, rounds=told.rounds, seconds=told.seconds)
    sys.stdout.write(f"{words}\n\n" + "\n".join(lines(found, told.workers)) + "\n\n")
    sys.stdout.write("\n".join(growth(found, told.workers)) + "\n")
    if told.json:
        settings = {"rounds": told.rounds, "seconds": told.seconds}
        result = {"machine": here, "settings": settings, "peers": found}
        told.json.write_text(json.dumps(result, indent=1) + "\n")
    wrong = list(differing(found, told.workers))
    for each in wrong:
        say(f"the peers' numbers differ in {each}")
    if wrong or any(errors(found)):
        raise SystemExit("not every program came to its right end; see above")


if __name__ == "__main__":
    main()
