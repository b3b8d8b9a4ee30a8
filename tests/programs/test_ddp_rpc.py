"""Runs the example of a table behind calls and dense layers in DDP."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Programs

LAUNCH = ["telegrad", "run", "--nproc-per-node"]
SHORT = """
from examples import ddp_rpc

ddp_rpc.EPOCHS = {epochs}

if __name__ == "__main__":
    ddp_rpc.main()
"""


@pytest.mark.long
@pytest.mark.timeout(90)
@pytest.mark.parametrize("epochs", [1, pytest.param(None, marks=pytest.mark.long)])
def test_the_trainers_learn_which_page_a_line_is_from(
    programs: Programs, epochs: int | None
) -> None:
    program: Path | str = "examples/ddp_rpc.py"
    if epochs is not None:
        program = programs.script(SHORT.format(epochs=epochs))
    output = programs.run([*LAUNCH, "3", program], limit=80.0)
    found = re.search(r"test accuracy: (\d+\.\d) % +always the longest page: (\d+\.\d) %", output)
    assert found is not None, output
    accuracy, always_the_longest = map(float, found.groups())
    assert accuracy >= always_the_longest + 25.0
    assert "dense layers bitwise equal on all trainers: yes" in output
    assert "warning" not in output.lower()
