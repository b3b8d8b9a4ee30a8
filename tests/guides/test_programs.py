"""Runs the programs of guides as their readers would: they print what the guides show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Programs
from tests.parts import needs_memory

DOCS = Path(__file__).parents[2] / "docs"


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("async-execution.md", "mean.py"),
        ("collectives.md", "mean.py"),
        ("data-parallel.md", "program.py"),
        ("data-parallel.md", "contrast.py"),
        pytest.param("data-parallel.md", "spawning.py", marks=needs_memory),
        ("futures.md", "many.py"),
        ("install.md", "hello.py"),
        ("pipelines.md", "program.py"),
        ("streams.md", "streaming.py"),
    ],
)
def test_a_program_prints_what_its_guide_shows(programs: Programs, page: str, name: str) -> None:
    text = (DOCS / page).read_text()
    found = re.search(rf"^    \$ (.*) {name}\n((?:    .*\n)+)", text, re.MULTILINE)
    assert found is not None
    script = programs.script(blocks(text[: found.start()])[-1], name)
    preload: list[str] | None = [] if found[1] == "python" else None
    output = programs.run([*found[1].split(), script], preload=preload)
    # Lines of one rank keep their order.
    printed = [line for line in output.splitlines() if line.startswith("[")]
    shown = [line.strip() for line in found[2].splitlines()]
    assert sorted(printed, key=rank) == sorted(shown, key=rank)


def rank(line: str) -> str:
    return line[: line.index("]")]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("page", "count"),
    [("autograd.md", 5), ("sparse.md", 3), ("extend.md", 4), ("nn.md", 2), ("optim.md", 2)],
)
def test_the_programs_of_a_page_run(page: str, count: int) -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    programs = blocks((DOCS / page).read_text())
    assert len(programs) >= count
    for program in programs:
        exec(compile(program, page, "exec"), names)
