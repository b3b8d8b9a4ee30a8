"""The table of attacks is the one in the README, and names tests that exist."""

from __future__ import annotations

from pathlib import Path

from tests.break_in.attack_table import README, rendered
from tests.tables_of_tests import defined_in, missing, named_tests

HERE = Path(__file__).parent
NAMED = named_tests(README)


def test_the_readme_holds_the_table() -> None:
    assert README.read_text().endswith(rendered())


def test_every_test_in_the_table_exists() -> None:
    assert NAMED
    assert not missing(NAMED)


def test_every_test_here_is_in_the_table() -> None:
    here = {
        (file, test)
        for file in HERE.glob("test_*.py")
        if file != Path(__file__)
        for test in defined_in(file)
    }
    assert here <= NAMED
