"""Runs the data-parallel example as its reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Programs

LAUNCH = ["telegrad", "run", "--nproc-per-node"]


SHORT = """
from tests import digits
digits.put_in_place()
from examples import ddp

ddp.EPOCHS = {epochs}

if __name__ == "__main__":
    ddp.dist.init_process_group()
    ddp.main()
    ddp.dist.destroy_process_group()
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("epochs", "least"), [(4, 80.0), pytest.param(None, 95.0, marks=pytest.mark.long)]
)
def test_the_ranks_learn_digits_as_one_process_does(
    programs: Programs, epochs: int | None, least: float
) -> None:
    program: Path | str = "examples/ddp.py"
    preload = ["sklearn.datasets"]  # which takes a second to import
    if epochs is not None:
        preload = []
        program = programs.script(SHORT.format(epochs=epochs))
    output = programs.run([*LAUNCH, "3", program], limit=80.0, preload=preload)
    found = re.findall(r"test accuracy, .*: (\d+\.\d) %", output)
    assert len(found) == 2, output
    ranks, alone = map(float, found)
    assert alone >= least
    assert abs(ranks - alone) <= 0.6  # two of the 360 images
    assert "parameters bitwise equal on all ranks: yes" in output
    assert "warning" not in output.lower()
