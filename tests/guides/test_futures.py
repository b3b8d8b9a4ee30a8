"""Holds docs/futures.md to the code: the verbs that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

from telegrad import rpc

GUIDE = Path(__file__).parents[2] / "docs" / "futures.md"


def test_every_verb_of_the_guide_exists() -> None:
    names = set(re.findall(r"\brpc\.([a-zA-Z_]\w*)\(", GUIDE.read_text()))
    assert {"gather", "first_n", "as_completed"} <= names
    assert names <= set(rpc.__all__)
