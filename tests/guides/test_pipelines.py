"""Runs what the guide to pipelines shows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tests.conftest import Programs

GUIDE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_program_prints_what_the_guide_shows(programs: Programs) -> None:
    shown = re.search(r"    \$ (telegrad run .*) program\.py\n((?:    .*\n)+)", GUIDE.read_text())
    assert shown is not None
    output = programs.run([*shown[1].split(), programs.script(blocks()[0])])
    expected = [line.strip() for line in shown[2].splitlines()]
    assert [line for line in output.splitlines() if line.startswith("[")] == expected


def test_the_model_with_a_skip_connection_runs() -> None:
    names: dict[str, object] = {}
    exec(blocks()[1], names)
    model: object = names["model"]
    assert callable(model)
    assert model(np.ones((3, 8), np.float32)).shape == (3, 2)
