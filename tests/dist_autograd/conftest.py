from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import telegrad
from tests.faults.remote_code import release

PACKAGE = f"{Path(telegrad.__file__).parent}{os.sep}"

_numbers = itertools.count()


@pytest.fixture
def name() -> Iterator[str]:
    """A gate of the test's own, open at its end."""
    name = f"gate {next(_numbers)}"
    yield name
    release(name)


@pytest.fixture
def called() -> Iterator[Counter[tuple[int, str]]]:
    """How often this package's functions ran, by thread; in all threads that begin from now on."""
    found: Counter[tuple[int, str]] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            place = f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}"
            found[threading.get_ident(), place] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
