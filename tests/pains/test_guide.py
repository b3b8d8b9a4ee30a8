"""Holds docs/coming-from-torch.md to the code: its programs run, and what it names exists."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from telegrad import collectives, dist_autograd, errors, launch, parallel, rpc, testing
from tests.conftest import TOKEN, Programs
from tests.house.tables_of_tests import ROOT, missing

GUIDE = (Path(__file__).parents[2] / "docs" / "coming-from-torch.md").read_text()
TORCH_ROWS = tomllib.loads((Path(__file__).parent / "torch_rows.toml").read_text())
SHOWN_BY: dict[str, list[str]] = TORCH_ROWS.pop("shown_by")
# What the guide says of torch comes first in a row; what it names there is not ours.
ROWS = [line.split(" | ", 1)[1] for line in GUIDE.splitlines() if re.match(r"\| .+ \| .+ \|", line)]
FACES = {
    "rpc": rpc,
    "dist_autograd": dist_autograd,
    "collectives": collectives,
    "parallel": parallel,
    "launch": launch,
    "testing": testing,
}


def program(name: str) -> tuple[str, str]:
    """Returns a program of the guide, and what the guide says that it prints."""
    found = re.search(
        rf"`{name}`[.:].*?```python\n(.*?)```\n+    \$ [^\n]*{name}\n((?:    [^\n]*\n)+)",
        GUIDE,
        re.DOTALL,
    )
    assert found, name
    return found[1], "".join(f"{line.strip()}\n" for line in found[2].splitlines())


@pytest.mark.long
def test_the_training_step_prints_what_the_guide_shows(programs: Programs) -> None:
    text, shown = program("step.py")
    script = programs.script(text, "step.py")
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", script])
    assert [line for line in output.splitlines() if line.startswith("[")] == shown.splitlines()


def test_the_calls_print_what_the_guide_shows(programs: Programs) -> None:
    text, shown = program("calls.py")
    script = programs.script(text, "calls.py")
    assert programs.run(["python", script], env={"TELEGRAD_TOKEN": TOKEN}, preload=[]) == shown


@pytest.mark.parametrize("face", FACES)
def test_what_the_guide_names_exists(face: str) -> None:
    names = {
        name for row in ROWS for name in re.findall(rf"(?<![\w./-]){face}\.(\w+(?:\.\w+)?)", row)
    }
    assert names
    for name in names:
        thing: object = FACES[face]
        for part in name.split("."):
            assert hasattr(thing, part), f"{face}.{name}"
            thing = getattr(thing, part)


def test_methods_and_options_that_the_guide_names_exist() -> None:
    for row in ROWS:
        for cls, name in re.findall(r"`(?:rpc\.)?(Future|RRef|Agent)\.(\w+)", row):
            if (cls, name) == ("Agent", "options"):  # of each agent, not of the class
                continue
            made = getattr(rpc, cls)
            assert hasattr(made, name), f"{cls}.{name}"
        for name in re.findall(r"RpcOptions\(?\.?(\w+)=?", row):
            assert name in {each.name for each in dataclasses.fields(rpc.RpcOptions)}, name
        for name in re.findall(r"\b(\w+Error)\b", row):
            found = getattr(errors, name, None) or getattr(
                importlib.import_module("builtins"), name
            )
            assert issubclass(found, Exception)


def test_no_row_of_torchs_features_is_left_out() -> None:
    """A row for each feature; every one says what is here, or that there is none."""
    sections = re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]
    found: dict[str, list[str]] = {}
    for section in sections:
        title, _, text = section.partition("\n")
        rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
        found[title] = []
        for row in rows:
            cells = re.split(r"(?<!\\) \| ?", row.strip("| "))
            assert 2 <= len(cells) <= 3, row
            assert "**None**" not in cells[1] or len(cells) == 3, row
            found[title].append(cells[0])
    del found["Programs"]  # of tutorials, not of features
    assert found == TORCH_ROWS


def test_each_row_of_groups_and_stores_names_the_tests_that_show_it() -> None:
    rows = [row for section in TORCH_ROWS.values() for row in section]
    assert SHOWN_BY.keys() <= set(rows)
    assert {*TORCH_ROWS["Collectives"], *TORCH_ROWS["Stores"]} <= SHOWN_BY.keys()
    named = {each for tests in SHOWN_BY.values() for each in tests}
    assert all(SHOWN_BY.values())
    assert not missing(
        {(ROOT / file, test) for file, _, test in (n.partition("::") for n in named)}
    )
