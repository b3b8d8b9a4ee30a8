"""The programs of the pages about autograd run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize(
    ("page", "count"), [("autograd.md", 5), ("sparse.md", 3), ("extend.md", 4)]
)
def test_the_programs_of_a_page_run(page: str, count: int) -> None:
    names: dict[str, Any] = {}
    programs = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.DOTALL)
    assert len(programs) >= count
    for program in programs:
        exec(compile(program, page, "exec"), names)
