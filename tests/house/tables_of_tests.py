"""Tables in a README that name tests: what stands in them, and what is defined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]

# A file and one of its tests; "" for the whole file.
Named: TypeAlias = tuple[Path, str]


def named_tests(readme: Path) -> set[Named]:
    """The tests that a README names, by their path from its directory or from the root."""
    found = set()
    for name in re.findall(r"`([\w/.]+\.py(?:::\w+)?)`", readme.read_text()):
        file, _, test = name.partition("::")
        from_root = file.startswith("tests/")
        if test or from_root:
            found.add(((ROOT if from_root else readme.parent) / file, test))
    return found


def defined_in(file: Path) -> set[str]:
    """The names of the tests of a file."""
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE))


def missing(named: set[Named]) -> list[str]:
    """Those that are not there."""
    return [
        f"{file}::{test}"
        for file, test in named
        if not file.exists() or (test and test not in defined_in(file))
    ]
