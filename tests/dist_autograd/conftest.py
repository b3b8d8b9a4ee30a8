from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.faults.remote_code import release

_numbers = itertools.count()


@pytest.fixture
def name() -> Iterator[str]:
    """A gate of the test's own, open at its end."""
    name = f"gate {next(_numbers)}"
    yield name
    release(name)
