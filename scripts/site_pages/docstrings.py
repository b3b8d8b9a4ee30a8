"""An extension of griffe that prepares docstrings for Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import griffe

from scripts.site_pages import text

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


class Docstrings(griffe.Extension):
    """Puts examples into fences and makes links of pages that are named."""

    def __init__(self) -> None:
        """Reads the titles of the pages."""
        self.titles = text.titles_of(
            {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")}
        )

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes one docstring."""
        if obj.docstring is not None:
            fenced = text.fence_examples(obj.docstring.value)
            obj.docstring.value = text.link_places(fenced, self.titles)
