from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.workers import Floor, floor_of


@pytest.fixture(params=["inproc", "local", "grpc"])
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    """Workers over each transport in turn."""
    with floor_of(request.param) as workers:
        yield workers


@pytest.fixture
def grpc_floor() -> Iterator[Floor]:
    """Workers over gRPC, for what only sockets can get wrong."""
    with floor_of("grpc") as workers:
        yield workers
