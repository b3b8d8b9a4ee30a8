"""Holds docs/dist-optimizer.md to the code: its program prints what the guide shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Programs

GUIDE = (Path(__file__).parents[2] / "docs" / "dist-optimizer.md").read_text()


@pytest.mark.parametrize("steps", [3, pytest.param(60, marks=pytest.mark.long)])
def test_the_program_of_the_guide_prints_what_it_shows(programs: Programs, steps: int) -> None:
    """After few steps the losses are not as small yet as the guide shows."""
    found = re.search(r"```python\n(.*?)```\n+    \$ [^\n]*\n((?:    [^\n]*\n)+)", GUIDE, re.DOTALL)
    assert found
    shown = [line.strip() for line in found[2].splitlines()]
    assert "STEPS = 60\n" in found[1]
    script = programs.script(found[1].replace("STEPS = 60", f"STEPS = {steps}"), "rounds.py")
    if steps < 60:
        shown = [line.replace("True", "False") for line in shown]
    output = programs.run(["telegrad", "run", "--nproc-per-node", "3", script])
    assert [line for line in output.splitlines() if line.startswith("[0]")] == shown
