"""The programs of docs/autograd.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "autograd.md"


def test_the_programs_of_the_document_run() -> None:
    names: dict[str, Any] = {}
    programs = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(programs) == 4
    for program in programs:
        exec(compile(program, str(DOCUMENT), "exec"), names)
