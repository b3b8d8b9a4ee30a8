"""Holds the documents to the code: the files that they name exist, docstrings' examples run."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "telegrad"
OWN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
DOCUMENTS = sorted([*OWN, *(ROOT / "docs").rglob("*.md")])
FLOORS = "|".join(p.name for p in PACKAGE.iterdir() if p.is_dir() and not p.name.startswith("_"))

WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_the_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text()
    for floor, name in re.findall(rf"(?<![\w/.])({FLOORS})/((?:\w+/)*\w+)(?:\.py)?\b", text):
        place = PACKAGE / floor / name
        room = place / "__init__.py"
        assert room.exists() or place.with_suffix(".py").exists(), f"telegrad/{floor}/{name}"
    for path in re.findall(r"(?<![\w/])(?:docs|tests|examples|scripts)/[\w/.-]+\w", text):
        assert (ROOT / path).exists(), path


def test_a_document_that_another_one_names_exists() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"`([\w-]+\.md)`", document.read_text()):
            assert (document.parent / name).exists(), f"{name} in {document.name}"


def test_the_map_has_a_row_for_each_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    rooms = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*/__init__.py")}
    assert [room for room in sorted(rooms - {"pb"}) if f"`{room}`" not in rows] == []


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_docstrings_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each example as the program that a reader makes of it: its functions are of `__main__`."""
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        main = types.ModuleType("__main__")
        vars(main).update({name: x for name, x in example.globs.items() if name[:2] != "__"})
        for script in ("__main__", "__mp_main__"):
            monkeypatch.setitem(sys.modules, script, main)
        example.globs = vars(main)
        runner.run(example, clear_globs=False)
    attempted = runner.summarize(verbose=False)
    assert attempted.attempted > 0
    assert attempted.failed == 0
