"""Runs the program and the tests of docs/testing.md as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import Programs

GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_tests_of_the_guide_pass(programs: Programs, tmp_path: Path) -> None:
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["tally.py", "test_tally.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    bare = ["-p", "no:cacheprovider", "-p", "no:asyncio"]
    output = programs.run(["python", "-m", "pytest", "-q", *bare, tmp_path], preload=[])
    assert "8 passed" in output
