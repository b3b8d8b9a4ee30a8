"""Holds the site of `make docs` to the tree: every page has a place, every public name an entry.

Builds nothing and needs no mkdocs; `make docs` itself fails where a link or an anchor is broken.
"""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from scripts.site_pages import notebook, reference, text
from tests.house.test_exports import DOCUMENTED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
PLACES = re.findall(r"([\w./-]+\.md)$", NAVIGATION, re.MULTILINE)
BY_MODULE = {face.module: face for face in reference.FACES}


def test_the_navigation_names_every_page_once() -> None:
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    made = [*text.ROOT_PAGES.values(), *map(reference.page_path, reference.FACES)]
    assert sorted(PLACES) == sorted([*pages, *made])


def test_every_documented_package_has_a_page() -> None:
    assert set(DOCUMENTED) <= set(BY_MODULE)


@pytest.mark.parametrize("name", BY_MODULE)
def test_every_public_name_has_an_entry_and_a_docstring(name: str) -> None:
    face = BY_MODULE[name]
    page = reference.page_of(face)
    names = reference.names_of(face)
    missing = [public for public in names if not entry_of(face, public, page)]
    assert names
    assert not missing
    assert not reference.undocumented(face)


def entry_of(face: reference.Face, name: str, page: str) -> bool:
    full = reference.public_name(face, name)
    if full in BY_MODULE:
        return f"]({reference.page_path(BY_MODULE[full]).removeprefix('reference/')})" in page
    marks = (f"\n::: {full}\n", f'<a id="{full}"></a>')
    return any(mark in page for mark in marks)


@pytest.mark.parametrize("name", [face.module for face in reference.FACES if not face.numpy])
def test_every_public_function_and_class_has_an_example(name: str) -> None:
    """tests/house/test_docs.py runs the examples."""
    face = BY_MODULE[name]
    without = [name for name in reference.names_of(face) if reference.lacks_example(face, name)]
    assert not without, f"give each an example in its docstring: {without}"


def test_a_class_without_a_docstring_is_found() -> None:
    face = reference.Face(__name__)
    module = importlib.import_module(__name__)
    assert list(reference.find_undocumented(face, module, ["Bare"])) == [f"{__name__}.Bare"]


class Bare:
    pass


@pytest.mark.parametrize("module", [text, reference, notebook], ids=lambda m: m.__name__)
def test_the_examples_of_the_scripts_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


# -- links ---------------------------------------------------------------------------------------

TITLES = {"index.md": "telegrad", "rref.md": "References", "tutorials/rl.md": "RL"}


@pytest.mark.parametrize(
    ("page", "written", "linked"),
    [
        ("rref.md", "`docs/tutorials/rl.md`", "[RL](tutorials/rl.md)"),
        ("tutorials/rl.md", "`rref.md`, `docs/rref.md`", "[References](../rref.md)"),
        ("rref.md", "`README.md`", "[telegrad](index.md)"),
        ("rref.md", "`docs/rref.md`", "`docs/rref.md`"),
        ("rref.md", "`tests/break_in/README.md`", "`tests/break_in/README.md`"),
        ("rref.md", "`../README.md`", "[telegrad](index.md)"),
        ("rref.md", "[a test](../tests/house/test_docs.py)", "`tests/house/test_docs.py`"),
        ("rref.md", "[below](#below)", "[below](#below)"),
        ("rref.md", "[gone](gone.md)", "[gone](gone.md)"),
        ("rref.md", "```\n`docs/tutorials/rl.md`\n```", "```\n`docs/tutorials/rl.md`\n```"),
        (
            "index.md",
            "[RL](docs/tutorials/rl.md#beside-torch)",
            "[RL](tutorials/rl.md#beside-torch)",
        ),
    ],
)
def test_files_that_a_page_names_become_links(page: str, written: str, linked: str) -> None:
    assert linked in text.link_files(written, page, TITLES)


@pytest.mark.parametrize("written", ["docs/rref.md", "`docs/rref.md`", "(docs/rref.md)."])
@pytest.mark.parametrize("indent", ["", "        "])
def test_pages_that_a_docstring_names_become_links(written: str, indent: str) -> None:
    """Also in its indented sections, such as `Args:`; `make docs` finds what is left."""
    linked = text.link_places(f"{indent}see {written}", TITLES)
    assert "[References](../rref.md)" in linked
    assert "docs/" not in linked
    assert linked.startswith(indent)


def test_only_the_first_mention_of_a_name_is_a_link() -> None:
    anchors = reference.anchors()
    linked = text.link_names("`rpc.gather`, `rpc.gather`, `RpcOptions`, `len`", "rref.md", anchors)
    assert linked == (
        "[`rpc.gather`][telegrad.rpc.gather], `rpc.gather`, [`RpcOptions`][telegrad.rpc.RpcOptions], `len`"
    )
    assert text.link_names("`tg.nn`", "tutorials/rl.md", anchors) == "[`tg.nn`](../reference/nn.md)"


def test_a_notebook_shows_its_cells_and_what_they_print() -> None:
    page = notebook.page_of_notebook(DOCS / "quickstart.ipynb")
    assert page.startswith("# telegrad in a notebook\n")
    assert "```text\n('worker1', 'worker2')\n```" in page


# -- on a phone ----------------------------------------------------------------------------------

PHONE = 46  # columns of code on a screen of 390 pixels


def test_reports_and_commands_of_the_doctor_wrap_on_a_phone() -> None:
    """They are read; programs, drawings and short tables are scrolled sideways where they have to."""
    wrapped = re.search(r":is\((.*)\) code .*pre-wrap", (DOCS / "site.css").read_text())
    assert wrapped
    assert "pygments_lang_class: true" in (ROOT / "mkdocs.yml").read_text()
    page = (DOCS / "doctor.md").read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        wide = max(map(len, block.splitlines())) > PHONE
        assert not wide or language == "python" or f".language-{language}" in wrapped[1]
