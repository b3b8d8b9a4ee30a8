"""Measures telegrad's calls beside its peers' in all states and sizes, in one run on one machine.

    make bench-rpc                                      # makes the peers' environments, then this
    python benchmarks/rpc.py [--peers telegrad torch ...] [--rounds 3] [--seconds 2]
                             [--workers 2 4 8 16] [--json bench-rpc.json]

Each peer runs in a process tree of its own, from its own environment (`.venv-bench-torch` and so
on; one that is not there is left out). A round runs every peer once, and starts with another one
than the round before, so that a machine that grows slower is unfair to nobody. The table shows the
median over the rounds, and how telegrad stands to torch; the JSON holds every round.

`benchmarks/bench.py` measures less of this, and all else; its table is the README's.

What is measured (benchmarks/peers/measure.py): an empty call and its p99; empty calls per second
with 1,000 in flight; a float32 array sent and sent back; a reference made at the callee, fetched
and dropped. Each with an idle callee and with one in which a thread computes in pure Python; then
empty calls of one caller to 1, 3, 7 and 15 callees. On a shared machine the figures mean
little, the ratios of one run something.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rounds import Found, about, errors, measure, median_of, present, version_of

PROGRAMS = {
    "telegrad": "telegrad_rpc.py",
    "telegrad-uvloop": "telegrad_rpc.py",
    "torch": "torch_rpc.py",
    "ray": "ray_actors.py",
    "xoscar": "xoscar_actors.py",
    "dask": "dask_actors.py",
    "monarch": "monarch_actors.py",
}
# A row's name, and where its figure lies.
ROWS = (
    ("empty call, p50 us", ("call", "p50")),
    ("empty call, p99 us", ("call", "p99")),
    ("calls/s, 1,000 in flight", ("calls", "per_second")),
    ("echo 1 KiB, p50 us", ("echo 1 KiB", "p50")),
    ("echo 1 MiB, p50 us", ("echo 1 MiB", "p50")),
    ("echo 64 MiB, p50 us", ("echo 64 MiB", "p50")),
    ("reference, p50 us", ("reference", "p50")),
)
GROWTH_ROWS = (ROWS[0], ROWS[2], ("all workers up, ms", ("start", "ms")))


def lines(found: Found) -> Iterator[str]:
    """Yields the table, as Markdown."""
    peers = list(found)
    header = ["", *[f"{peer} {version_of(found[peer])}".strip() for peer in peers]]
    ratio = "telegrad" in peers and "torch" in peers
    if ratio:
        header.append("telegrad / torch")
    yield "| " + " | ".join(header) + " |"
    yield "|---" * len(header) + "|"
    for label, plan, state, where in rows(found):
        values = [median_of(found[peer].get(plan, ()), state, *where) for peer in peers]
        cells = ["–" if value is None else f"{value:,.0f}" for value in values]
        if ratio:
            by_peer = dict(zip(peers, values, strict=True))
            ours, theirs = by_peer["telegrad"], by_peer["torch"]
            cells.append(f"{ours / theirs:.2f}" if ours and theirs else "–")
        yield "| " + " | ".join([label, *cells]) + " |"


def rows(found: Found) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yields each row: its label, its plan and state, and where its figure lies."""
    for state in ("idle", "busy"):
        for name, where in ROWS:
            yield f"{name}, {state} callee", "2 workers", state, where
    plans = {plan: None for reports in found.values() for plan in reports}
    for plan in plans:
        if plan.startswith("growth"):
            for name, where in GROWTH_ROWS:
                yield f"{name}, {plan.split()[1]} workers", plan, "idle", where


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--json", type=Path, help="where the figures of every round go")
    told = parser.parse_args()
    peers, _ = present(told.peers, "bench-rpc")
    if not peers:
        parser.error("none of these peers is installed")
    here, words = about(told.rounds)
    plans = [("2 workers", ["--workers", "2"])]
    plans += [(f"growth {n}", ["--workers", str(n), "--growth"]) for n in told.workers]
    programs = {peer: PROGRAMS[peer] for peer in peers}
    found = measure(programs, plans, rounds=told.rounds, seconds=told.seconds)
    sys.stdout.write(f"{words}\n\n" + "\n".join(lines(found)) + "\n")
    if told.json:
        settings = {"rounds": told.rounds, "seconds": told.seconds}
        result = {"machine": here, "settings": settings, "peers": found}
        told.json.write_text(json.dumps(result, indent=1) + "\n")
    if any(errors(found)):
        raise SystemExit("not every program came to its end; see above")


if __name__ == "__main__":
    main()
