"""The table of pains names tests that exist, and every test of this directory stands in it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = (HERE / "README.md").read_text()
PAINS = 40


def named_tests() -> set[tuple[Path, str]]:
    found = set()
    for name in re.findall(r"`([\w/.]+\.py(?:::\w+)?)`", TABLE):
        file, _, test = name.partition("::")
        if test or file.startswith("tests/"):
            found.add((ROOT / file if file.startswith("tests/") else HERE / file, test))
    return found


def defined_in(file: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE))


def test_every_test_in_the_table_exists() -> None:
    missing = [
        f"{file}::{test}"
        for file, test in named_tests()
        if not file.exists() or (test and test not in defined_in(file))
    ]
    assert not missing


def test_every_test_here_is_in_the_table_and_in_the_row_of_its_number() -> None:
    rows = {int(n): text for n, text in re.findall(r"^\| (\d+)\. (.*)$", TABLE, re.MULTILINE)}
    assert list(rows) == list(range(1, PAINS + 1))
    for file in HERE.glob("test_*.py"):
        for test in defined_in(file):
            if test.startswith("test_pain_"):
                assert test in rows[int(test.split("_")[2])], test
