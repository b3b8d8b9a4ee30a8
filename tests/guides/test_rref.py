from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import Programs

GUIDE = Path(__file__).parents[2] / "docs" / "rref.md"


def test_the_program_of_the_guide_runs(programs: Programs) -> None:
    text, *_ = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    started = programs.ranks(programs.script(text), 2)
    assert [program.wait().strip() for program in started] == ["done", "done"]
