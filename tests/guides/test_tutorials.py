"""Holds tutorials, and guides to one example, to the example: what they show is there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIALS = {page: page.stem.replace("-", "_") for page in sorted(DOCS.glob("tutorials/*.md"))}
GUIDES = {
    DOCS / "async-execution.md": "batch_rpc",
    DOCS / "internals" / "pipeline-by-hand.md": "pipeline_by_hand",
}
PAGES = TUTORIALS | GUIDES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_what_a_page_shows_is_in_its_example(page: Path) -> None:
    name = f"examples/{PAGES[page]}.py"
    example, text = (ROOT / name).read_text(), page.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if page in GUIDES:
        shown = [block for block in blocks if "__main__" not in block]  # a program of its own
    else:
        assert re.search(rf"    telegrad run --nproc-per-node \d {name}", text)
        shown = [block for block in blocks if "torch." not in block]  # what is said of torch
    assert shown
    for block in shown:
        depths = (textwrap.indent(block, " " * depth) for depth in range(0, 16, 4))
        assert any(f"\n{inside}" in f"\n{example}" for inside in depths), block
