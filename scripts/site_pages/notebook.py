"""A notebook as a page: its text, its cells, and what they printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["page_of_notebook"]


def page_of_notebook(path: Path) -> str:
    """Returns the cells of a notebook as Markdown."""
    return "\n".join(line for cell in json.loads(path.read_text())["cells"] for line in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield from (source, "")
        return
    yield from ("```python", source, "```", "")
    shown = "".join(_printed(output) for output in cell["outputs"]).rstrip()
    if shown:
        yield from ("```text", re.sub(r"\x1b\[[\d;]*m", "", shown), "```", "")


def _printed(output: dict[str, Any]) -> str:
    told = output.get("text") or output.get("data", {}).get("text/plain") or ""
    return "".join(told)
