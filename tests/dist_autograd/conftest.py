from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from telegrad.testing import Cluster
from tests.faults.remote_code import release

_numbers = itertools.count()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def name() -> Iterator[str]:
    """A gate of the test's own, open at its end."""
    name = f"gate {next(_numbers)}"
    yield name
    release(name)
