"""Holds docs/streams.md to the code: its program prints what the guide shows."""

from __future__ import annotations

from tests.conftest import ROOT, Programs


def test_the_program_of_the_guide(programs: Programs) -> None:
    text = (ROOT / "docs" / "streams.md").read_text()
    program = text.partition("```python\n")[2].partition("```")[0]
    command = "telegrad run --nproc-per-node 2 streaming.py"
    said = [line.strip() for line in text.partition(command)[2].partition("\n\n")[0].split("\n")]
    script = programs.script(program, "streaming.py")
    launch = ["telegrad", "run", "--nproc-per-node", "2"]
    output = programs.run([*launch, script])
    assert [line for line in output.splitlines() if line.startswith("[0]")] == said[1:]
    assert len(said) == 5
