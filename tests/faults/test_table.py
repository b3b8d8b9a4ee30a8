"""The table of faults names tests that exist, and every test of this directory stands in it."""

from __future__ import annotations

from pathlib import Path

from tests.tables_of_tests import defined_in, missing, named_tests

HERE = Path(__file__).parent
NAMED = named_tests(HERE / "README.md")


def test_every_test_in_the_table_exists() -> None:
    assert NAMED
    assert not missing(NAMED)


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
    assert here <= NAMED
