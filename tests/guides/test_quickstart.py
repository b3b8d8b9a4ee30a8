"""The quickstart runs in a real kernel, and what it shows is what it stores."""

from __future__ import annotations

from tests.conftest import Programs


def test_the_quickstart_shows_what_it_stores(programs: Programs) -> None:
    programs.run(["python", "scripts/run_notebook.py", "docs/quickstart.ipynb", "--check"])
