"""What the tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.hostile_row import ROLES
from tests.faults.network_namespaces import Bridge


@pytest.fixture
def bridge(request: pytest.FixtureRequest) -> Iterator[Bridge | None]:
    """Network namespaces where the test's fault is a cut."""
    if request.node.callspec.params["fault"] != "cut":
        yield None
        return
    made = Bridge(len(ROLES))
    try:
        made.make()
        yield made
    finally:
        made.close()
