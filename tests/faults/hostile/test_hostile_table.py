"""The table of hostile cases has a row for every public verb, and the README shows it."""

from __future__ import annotations

from pathlib import Path

from tests.faults.hostile.hostile_coverage import (
    ELSEWHERE,
    WAITS_FOR_NOBODY,
    covered,
    public_verbs,
    table,
)
from tests.faults.hostile.hostile_row import ROLES, VICTIMS
from tests.faults.hostile.hostile_table import ROWS

HERE = Path(__file__).parents[1]


def test_every_public_verb_has_a_row_or_a_reason() -> None:
    waits_for_nobody = {name for names in WAITS_FOR_NOBODY.values() for name in names.split()}
    missing = public_verbs() - covered() - waits_for_nobody - set(ELSEWHERE)
    assert not missing, "add a row to hostile_verbs.py or hostile_training.py, or say why not"
    assert not (covered() | set(ELSEWHERE)) & waits_for_nobody
    stale = (waits_for_nobody | set(ELSEWHERE)) - public_verbs()
    assert not stale, "no such name any more"


def test_what_is_tested_elsewhere_is() -> None:
    for name, place in ELSEWHERE.items():
        file, _, test = place.partition("::")
        path = HERE.parents[1] / file if file.startswith("tests/") else HERE / file
        assert f"def {test or 'test_'}" in path.read_text(), name


def test_every_row_can_be_told_apart() -> None:
    """Each has a caller, and somebody whose loss ends it, or who is told when the caller is lost."""
    for row in ROWS.values():
        assert set(row.at) <= set(ROLES)
        assert set(row.ends) <= set(VICTIMS)
        assert row.held or row.middle, f"{row.name} does not say that it is in the middle"


def test_the_readme_shows_the_table() -> None:
    assert table() in (HERE / "README.md").read_text(), f"write into README.md:\n{table()}"
