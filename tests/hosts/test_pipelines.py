"""A pipeline over two hosts: the tutorial's language model of characters."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.hosts.conftest import Launch, MakeHosts

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "character-pipeline.md"
SHORT = """
import sys
from examples import character_pipeline as example

example.STEPS, example.LINE_EVERY, example.SAMPLE = 8, 2, 10
example.BATCH, example.MICRO_BATCHES, example.LENGTH, example.WIDTH = 16, 4, 16, 32
sys.argv += ["--picture", {picture!r}]

if __name__ == "__main__":
    example.main()
"""


def masked(line: str) -> str:
    """Returns a line of output without numbers and the name of the picture."""
    return re.sub(r"[\d,.]*\d", "N", re.sub(r"\S+\.svg$", "PICTURE", " ".join(line.split())))


@pytest.mark.timeout(90)
def test_four_stages_on_two_hosts_learn_and_print_what_the_tutorial_shows(
    make_hosts: MakeHosts, launch: Launch, tmp_path: Path
) -> None:
    picture = tmp_path / "step.svg"
    first, second = launch(make_hosts(2), SHORT.format(picture=str(picture)), 2, 2)
    output = first.wait()
    second.wait()
    losses = [float(loss) for loss in re.findall(r"step +\d+/8 +loss (\d\.\d+)", output)]
    assert len(losses) == 5, output
    assert losses[-1] < losses[0] - 1.0
    assert "that a stage held: (4, 3, 2, 1)" in output
    lines = [line for line in output.partition("[0] it writes:")[0].splitlines() if "[0]" in line]
    shown = {masked(line) for line in TUTORIAL.read_text().splitlines()}
    assert {masked(line) for line in lines} <= shown
    rows = [text.text for text in ElementTree.parse(picture).iter() if text.tag.endswith("text")]
    assert [rows.count(f"place {place}") for place in range(5)] == [2, 2, 2, 2, 0]
    assert "warning" not in output.lower()
