"""Runs a notebook in a real kernel, in an empty directory, and stores its outputs or checks them.

python scripts/run_notebook.py docs/quickstart.ipynb            stores the outputs
python scripts/run_notebook.py docs/quickstart.ipynb --check    fails where they differ
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

CELL_SECONDS = 120


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--check", action="store_true", help="compare, and store nothing")
    options = parser.parse_args()
    stored = nbformat.read(options.notebook, as_version=4)
    fresh = nbformat.from_dict(stored)
    with tempfile.TemporaryDirectory() as directory:
        NotebookClient(
            fresh,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": directory}},
        ).execute()
        if left := os.listdir(directory):
            sys.exit(f"{options.notebook} leaves {', '.join(left)} behind")
    if options.check:
        return check(options.notebook, stored, fresh)
    fresh.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    nbformat.write(fresh, options.notebook)
    return 0


def check(path: Path, stored: Any, fresh: Any) -> int:
    """Says in which cells the outputs differ."""
    code = 0
    for i, (before, now) in enumerate(zip(stored.cells, fresh.cells, strict=True)):
        if before.cell_type == "code" and texts(before) != texts(now):
            sys.stderr.write(
                f"{path}, cell {i}: {texts(before)!r} is stored, and now it is {texts(now)!r}; "
                f"renew it: python scripts/run_notebook.py {path}\n"
            )
            code = 1
    return code


def texts(cell: Any) -> list[str]:
    """Returns what a cell wrote, stream by stream, and its value; no ages, no temporary folders."""
    written = [
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in cell.outputs
        if output.output_type in ("stream", "execute_result", "display_data")
    ]
    ages = [re.sub(r"\d+\.\d s old", "N s old", text) for text in written]
    return [re.sub(r"/\S+/mycode", "/tmp/folder/mycode", text) for text in ages]


if __name__ == "__main__":
    sys.exit(main())
