"""Holds docs/futures.md to the code: its program prints what the guide shows."""

from __future__ import annotations

import re
from pathlib import Path

from telegrad import rpc
from tests.conftest import Programs

GUIDE = (Path(__file__).parents[2] / "docs" / "futures.md").read_text()


def test_the_program_of_the_guide_prints_what_it_shows(programs: Programs) -> None:
    found = re.search(r"```python\n(.*?)```\n+    \$ [^\n]*\n((?:    [^\n]*\n)+)", GUIDE, re.DOTALL)
    assert found
    shown = [line.strip() for line in found[2].splitlines()]
    script = programs.script(found[1], "many.py")
    output = programs.run(["telegrad", "run", "--nproc-per-node", "3", script])
    assert [line for line in output.splitlines() if line.startswith("[0]")] == shown


def test_every_verb_of_the_guide_exists() -> None:
    names = set(re.findall(r"\brpc\.([a-zA-Z_]\w*)\(", GUIDE))
    assert {"gather", "first_n", "as_completed"} <= names
    assert names <= set(rpc.__all__)
