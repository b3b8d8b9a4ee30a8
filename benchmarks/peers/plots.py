"""Draws what `make bench` found: a panel for each row, and the growth. Needs matplotlib alone.

python plots.py bench.json docs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from parts import GROWTH, ROWS, Row
from report import name_of, number
from rounds import Found, median_of

mpl.use("Agg")  # there may be no screen

import matplotlib.pyplot as plt

COLOURS = {
    "telegrad": "#0b6e4f",
    "telegrad-plain": "#6bbf9c",
    "telegrad-grpc": "#a8dcc6",
    "torch": "#d1495b",
    "xoscar": "#30638e",
    "ray": "#edae49",
    "dask": "#8d6a9f",
    "monarch": "#7f7f7f",
    "numpy": "#4d77cf",
    "openmpi": "#a0522d",
}
COLUMNS = 3
PANEL = (4.2, 1.9)  # inches
DPI = 110


def draw_rows(parts: dict[str, Found], words: str, path: Path) -> bool:
    """Draws a panel of bars for each row that was measured; tells whether there are any."""
    drawn = [(row, bars) for row in ROWS if (bars := _bars(parts.get(row.part, {}), row))]
    if not drawn:
        return False
    lines = -(-len(drawn) // COLUMNS)
    figure, axes = plt.subplots(
        lines, COLUMNS, figsize=(PANEL[0] * COLUMNS, PANEL[1] * lines), squeeze=False
    )
    for place, ax in enumerate(axes.flat):
        if place >= len(drawn):
            ax.axis("off")
            continue
        row, bars = drawn[place]
        peers = list(reversed(bars))
        made = ax.barh(
            [name_of(peer, row.part) for peer in peers],
            [bars[peer] for peer in peers],
            color=[COLOURS[peer] for peer in peers],
        )
        ax.bar_label(made, [number(bars[peer]) for peer in peers], padding=3, fontsize=7)
        ax.locator_params(axis="x", nbins=5)
        more = "/s" in row.label
        ax.set_title(
            f"{row.label.replace('`', '')} ({'more' if more else 'less'} is better)", fontsize=7.5
        )
        ax.tick_params(labelsize=7)
        ax.margins(x=0.2)
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(words, fontsize=8)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=DPI)
    return True


def _bars(found: Found, row: Row) -> dict[str, float]:
    values = {
        peer: median_of(reports.get(row.plan, ()), *row.where) for peer, reports in found.items()
    }
    return {peer: value / row.scale for peer, value in values.items() if value is not None}


def draw_growth(found: Found, words: str, path: Path) -> bool:
    """Draws calls a second and memory by the number of workers; tells whether there are any."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    panels: list[tuple[Any, str, tuple[str, str]]] = [
        (axes[0], "calls/s, all workers together", ("all", "per_second")),
        (axes[1], "resident, MiB a worker", ("resident", "mib")),
    ]
    any_drawn = False
    for ax, title, where in panels:
        for peer, reports in found.items():
            points = [
                (n, value)
                for n in GROWTH
                if (value := median_of(reports.get(f"{n} workers", ()), *where)) is not None
            ]
            if points:
                any_drawn = True
                ax.plot(
                    *zip(*points, strict=True),
                    "o-",
                    color=COLOURS[peer],
                    label=name_of(peer, "growth"),
                )
        ax.set_xscale("log", base=2)
        ax.set_xticks(GROWTH, [str(n) for n in GROWTH])
        ax.set_xlabel("workers")
        ax.set_ylim(bottom=0)
        ax.set_title(title, fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(words, fontsize=8)
    figure.set_layout_engine("constrained")
    if any_drawn:
        figure.savefig(path, dpi=DPI)
    return any_drawn


def main() -> None:
    """Draws what is there."""
    result = json.loads(Path(sys.argv[1]).read_text())
    place = Path(sys.argv[2])
    drawn = []
    if draw_rows(result["parts"], result["words"], place / "bench.png"):
        drawn.append("bench.png")
    if draw_growth(result["parts"].get("growth", {}), result["words"], place / "bench-growth.png"):
        drawn.append("bench-growth.png")
    sys.stdout.write(json.dumps({"drawn": drawn}) + "\n")


if __name__ == "__main__":
    main()
