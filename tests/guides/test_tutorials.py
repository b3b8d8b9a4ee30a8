"""Holds each tutorial to its example: what it shows is there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.name)
def test_what_a_tutorial_shows_is_in_its_example(tutorial: Path) -> None:
    name = f"examples/{tutorial.stem.replace('-', '_')}.py"
    example, text = (ROOT / name).read_text(), tutorial.read_text()
    assert re.search(rf"    telegrad run --nproc-per-node \d {name}", text)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = [block for block in blocks if "torch." not in block]  # what is said of torch is torch's
    assert shown
    for block in shown:
        depths = (textwrap.indent(block, " " * depth) for depth in range(0, 16, 4))
        assert any(f"\n{inside}" in f"\n{example}" for inside in depths), block
