"""The table of faults names tests that exist, and every test of this directory stands in it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def named_tests() -> set[tuple[Path, str]]:
    found = set()
    for name in re.findall(r"`([\w/.]+\.py(?:::\w+)?)`", (HERE / "README.md").read_text()):
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


def test_every_test_here_is_in_the_table() -> None:
    checks_of_the_suite = {
        "test_each_bad_call_has_its_expectation",
        *defined_in(HERE / "test_hostile_table.py"),
    }
    here = {
        (file, test)
        for file in HERE.glob("test_*.py")
        if file != Path(__file__)
        for test in defined_in(file) - checks_of_the_suite
    }
    assert here <= named_tests()
