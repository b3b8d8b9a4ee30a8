"""Holds docs/futures.md and docs/streams.md to the code: their programs print what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from telegrad import rpc
from tests.conftest import Programs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("guide", "ranks"), [("futures.md", "3"), ("streams.md", "2")])
def test_the_program_of_the_guide_prints_what_it_shows(
    programs: Programs, guide: str, ranks: str
) -> None:
    text = (DOCS / guide).read_text()
    found = re.search(r"```python\n(.*?)```\n+    \$ [^\n]*\n((?:    [^\n]*\n)+)", text, re.DOTALL)
    assert found
    shown = [line.strip() for line in found[2].splitlines()]
    script = programs.script(found[1], "many.py")
    output = programs.run(["telegrad", "run", "--nproc-per-node", ranks, script])
    assert [line for line in output.splitlines() if line.startswith("[0]")] == shown


def test_every_verb_of_the_guide_exists() -> None:
    names = set(re.findall(r"\brpc\.([a-zA-Z_]\w*)\(", (DOCS / "futures.md").read_text()))
    assert {"gather", "first_n", "as_completed"} <= names
    assert names <= set(rpc.__all__)
