"""The tables of faults, attacks and pains name tests that exist, and all tests beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.tables_of_tests import defined_in, missing, named_tests

TESTS = Path(__file__).parents[1]
FAULTS, ATTACKS, PAINS = (TESTS / name / "README.md" for name in ("faults", "break_in", "pains"))
NUMBERS = range(1, 41)  # of pains
CHECKS_OF_TABLES = {"test_each_bad_call_has_its_expectation", "test_hostile_table.py"}


@pytest.mark.parametrize("readme", [FAULTS, ATTACKS, PAINS], ids=lambda path: path.parent.name)
def test_every_test_in_the_table_exists(readme: Path) -> None:
    named = named_tests(readme)
    assert named
    assert not missing(named)


@pytest.mark.parametrize("readme", [FAULTS, ATTACKS], ids=lambda path: path.parent.name)
def test_every_test_beside_a_table_is_in_it(readme: Path) -> None:
    here = {
        (file, test)
        for file in readme.parent.rglob("test_*.py")
        for test in defined_in(file)
        if not {file.name, test} & CHECKS_OF_TABLES
    }
    assert here
    assert here <= named_tests(readme)


def test_every_test_of_a_pain_is_in_the_row_of_its_number() -> None:
    table = PAINS.read_text()
    rows = {int(n): text for n, text in re.findall(r"^\| (\d+)\. (.*)$", table, re.MULTILINE)}
    assert list(rows) == list(NUMBERS)
    for file in PAINS.parent.glob("test_*.py"):
        for test in defined_in(file):
            if test.startswith("test_pain_"):
                assert test in rows[int(test.split("_")[2])], test
