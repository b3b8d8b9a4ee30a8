"""Runs the program of the guide as its reader would, and compares what it prints."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import Programs

GUIDE = Path(__file__).parents[2] / "docs" / "collectives.md"


def test_the_program_of_the_guide_prints_what_it_shows(programs: Programs) -> None:
    text = GUIDE.read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"    \$ telegrad run --nproc-per-node 3 mean\.py\n((?:    .*\n)+)", text)
    assert program is not None
    assert shown is not None
    script = programs.script(program[1], "mean.py")
    output = programs.run(["telegrad", "run", "--nproc-per-node", "3", script])
    expected = [line.strip() for line in shown[1].splitlines()]
    assert [line for line in output.splitlines() if line.startswith("[")] == expected
