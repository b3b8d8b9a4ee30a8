"""The table of pains names tests that exist, and every test of this directory stands in it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tables_of_tests import defined_in, missing, named_tests

HERE = Path(__file__).parent
README = HERE / "README.md"
NAMED = named_tests(README)
PAINS = 40


def test_every_test_in_the_table_exists() -> None:
    assert NAMED
    assert not missing(NAMED)


def test_every_test_here_is_in_the_table_and_in_the_row_of_its_number() -> None:
    table = README.read_text()
    rows = {int(n): text for n, text in re.findall(r"^\| (\d+)\. (.*)$", table, re.MULTILINE)}
    assert list(rows) == list(range(1, PAINS + 1))
    for file in HERE.glob("test_*.py"):
        for test in defined_in(file):
            if test.startswith("test_pain_"):
                assert test in rows[int(test.split("_")[2])], test
