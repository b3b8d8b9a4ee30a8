"""Runs the examples as their readers would, and holds README to what they say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Programs

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
LAUNCH: list[str | Path] = [Path(sys.executable).with_name("telegrad"), "run", "--nproc-per-node"]


def test_the_program_in_the_readme_is_the_example() -> None:
    program = (ROOT / "examples" / "first_gradient.py").read_text()
    assert len(program.splitlines()) <= 30
    assert f"```python\n{program}```" in README.read_text()


def test_the_first_gradient_prints_what_the_readme_shows(programs: Programs) -> None:
    output = programs.run([*LAUNCH, "2", "examples/first_gradient.py"])
    shown = re.search(
        r"    \$ telegrad run .*first_gradient\.py\n((?:    .*\n)+)", README.read_text()
    )
    assert shown is not None
    expected = [line.strip() for line in shown[1].splitlines()]
    assert [line for line in output.splitlines() if line.startswith("[0]")] == expected


@pytest.mark.timeout(90)
def test_the_parameter_server_learns_digits(programs: Programs) -> None:
    output = programs.run([*LAUNCH, "3", "examples/parameter_server.py"], limit=80.0)
    accuracy = re.search(r"test accuracy: (\d+\.\d) %", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) >= 95.0
    assert re.search(r"calls: [\d,]+ +bytes: [\d.]+ MB +time: [\d.]+ s", output)
    assert "warning" not in output.lower()
