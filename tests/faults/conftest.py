"""What the tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.hostile.hostile_row import ROLES
from tests.hosts.namespaces import Hosts


@pytest.fixture
def bridge(request: pytest.FixtureRequest) -> Iterator[Hosts | None]:
    """Network namespaces where the test's fault is a cut."""
    if request.node.callspec.params["fault"] != "cut":
        yield None
        return
    with Hosts.made(len(ROLES)) as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that last."""
    with ThreadPoolExecutor(8) as pool:
        yield pool
