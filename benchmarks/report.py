"""The tables of `make bench` as Markdown, and their place in the documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parts import GROWTH, ROWS, Row
from rounds import Found, median_of, median_of_ratios, version_of

__all__ = [
    "NONE",
    "README_ROWS",
    "TABLES",
    "cell",
    "digest",
    "growth_lines",
    "marked",
    "name_of",
    "number",
    "replace",
    "summary",
    "table",
]

NAMES = {
    "telegrad": "telegrad",
    "telegrad-plain": "telegrad, not encrypted",
    "telegrad-grpc": "telegrad, `direct=False`",
    "torch": "torch (TensorPipe)",
    "xoscar": "xoscar",
    "ray": "Ray",
    "dask": "Dask",
    "monarch": "Monarch",
    "numpy": "NumPy by hand",
    "openmpi": "OpenMPI",
}
# Where torch has no calls, but collectives.
OVER_GLOO = ("collectives", "ddp", "collectives-hosts")
NONE = "–"
# The parts that share a table: they have the same peers.
TABLES = (
    ("calls", "grpc", "step", "jobs"),
    ("collectives", "ddp"),
    ("mlp",),
    ("hosts",),
    ("collectives-hosts",),
)
# A question of a reader each: latency, throughput, large arrays, gradients, data parallelism.
README_LABELS = (
    "empty `rpc_sync`, p50, us",
    "`rpc_async`, 1,000 in flight, calls/s",
    "echo 64 MiB, ms",
    "step of distributed autograd, us",
    "2 ranks: DDP step, ms",
)
README_ROWS = tuple(row for row in ROWS if row.label in README_LABELS)
BEGIN, END = "<!-- {}: written by make {} -->", "<!-- end of {} -->"


def number(value: float | None) -> str:
    """Returns a figure with three digits that count, or as many as its integer part has."""
    if value is None:
        return NONE
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def name_of(peer: str, part: str) -> str:
    """Returns what the documents call a peer that a part measures."""
    return "torch (Gloo)" if peer == "torch" and part in OVER_GLOO else NAMES[peer]


def table(parts: Mapping[str, Found]) -> Iterator[str]:
    """Yields the rows that were measured; how telegrad stands to whom, and the gate.

    Args:
        parts: What was found, by part.
    """
    shown = [row for row in ROWS if row.part in parts]
    peers = list(dict.fromkeys(peer for row in shown for peer in parts[row.part]))
    versions = {peer: _version(parts, peer) for peer in peers}
    names = {peer: name_of(peer, shown[0].part) for peer in peers}
    header = ["", *(f"{names[peer]} {versions[peer]}".strip() for peer in peers)]
    header += ["telegrad's is", "gate"]
    yield "| " + " | ".join(header) + " |"
    yield "|---" + "|--:" * (len(header) - 2) + "|---|"
    for row in shown:
        yield "| " + " | ".join([row.label, *_cells(parts[row.part], row, peers)]) + " |"


def digest(result: Mapping[str, Any]) -> list[str]:
    """Returns what the README shows: a few rows of several tables, without gates."""
    parts = {row.part: result["parts"][row.part] for row in README_ROWS}
    peers = list(dict.fromkeys(peer for found in parts.values() for peer in found))
    names = {**NAMES, "torch": "torch"}  # over TensorPipe or Gloo, by row
    header = ["", *(f"{names[peer]} {_version(parts, peer)}".strip() for peer in peers)]
    lines = [f"{result['words']}.", "", "| " + " | ".join(header) + " |"]
    lines.append("|---" + "|--:" * len(peers) + "|")
    for row in README_ROWS:
        cells = [cell(parts[row.part], row, peer) for peer in peers]
        lines.append("| " + " | ".join([row.label, *cells]) + " |")
    return lines


def _version(parts: Mapping[str, Found], peer: str) -> str:
    return next((v for found in parts.values() if (v := version_of(found.get(peer, {})))), "")


def _cells(found: Found, row: Row, peers: Sequence[str]) -> list[str]:
    cells = [cell(found, row, peer) for peer in peers]
    if row.gate is None:
        return [*cells, NONE, NONE]
    ratio = ratio_of(found, row)
    if ratio is None:
        return [*cells, NONE, str(row.gate)]
    ratios, missed = f"{ratio:.2f}", ""
    if not row.gate.met(ratio):  # with three digits, as two may round a miss to the gate
        missed = f"; missed ({ratio:.3f}), no worse than {row.gate.bound(ratio):.2f}"
    if (over_grpc := ratio_of(found, row, "telegrad-grpc")) is not None:
        ratios += f", over gRPC {over_grpc:.2f}"
    return [*cells, f"{ratios} x {row.gate.peer}", f"{row.gate}{missed}"]


def cell(found: Found, row: Row, peer: str) -> str:
    """Returns a peer's figure of a row, in the row's unit."""
    value = median_of(found.get(peer, {}).get(row.plan, ()), *row.where)
    return number(None if value is None else value / row.scale)


def ratio_of(found: Found, row: Row, ours_is: str = "") -> float | None:
    """Returns telegrad's figure, or that of a variant, over that of the peer that a gate names."""
    assert row.gate is not None
    ours = found.get(ours_is or row.gate.ours, {}).get(row.plan, ())
    theirs = found.get(row.gate.peer, {}).get(row.plan, ())
    return median_of_ratios(ours, theirs, *row.where)


def growth_lines(found: Found) -> Iterator[str]:
    """Yields what came of more and more workers."""
    columns = [
        ("calls/s", ("all", "per_second")),
        ("resident, MiB a worker", ("resident", "mib")),
        ("its share, MiB", ("proportional", "mib")),
        ("all up, ms", ("start", "ms")),
    ]
    header = ["workers", *(f"{NAMES[peer]}: {name}" for peer in found for name, _ in columns)]
    yield "| " + " | ".join(header) + " |"
    yield "|--:" * len(header) + "|"
    for n in GROWTH:
        reports = [found[peer].get(f"{n} workers", ()) for peer in found]
        if any(reports):
            cells = [number(median_of(some, *where)) for some in reports for _, where in columns]
            yield "| " + " | ".join([str(n), *cells]) + " |"


def marked(name: str) -> tuple[str, str]:
    """Returns the comments between which a table stands in a document."""
    target = "profile" if name.startswith("profile") else "bench"
    return BEGIN.format(name, target), END.format(name)


def replace(document: Path, name: str, lines: Sequence[str]) -> None:
    """Writes lines between the marks of a document.

    Raises:
        ValueError: The document has not both of them, once each and in order.
    """
    begin, end = marked(name)
    text = document.read_text()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{document} needs {begin!r} and then {end!r}, once each")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    document.write_text("".join([before, begin, "\n\n", "\n".join(lines), "\n\n", end, after]))


def summary(result: Mapping[str, Any]) -> list[str]:
    """Returns what docs/performance.md shows: tables, on what and when, and what is missing."""
    lines = [f"{result['words']}."]
    for names in TABLES:
        if parts := {name: result["parts"][name] for name in names if name in result["parts"]}:
            lines += ["", *table(parts)]
    left_out = [f"{NAMES[peer]} is not measured: {why}." for peer, why in result["missing"].items()]
    left_out += [f"Not run, {part}: {reason}." for part, reason in result["skipped"].items()]
    return [*lines, "", *left_out] if left_out else lines
