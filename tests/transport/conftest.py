from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audit_log import AuditLog, audit_log_of_all
from tests.transport.workers import Authority, Floor, Worker, floor_of


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


@pytest.fixture
def local() -> Iterator[Floor]:
    """Workers over Unix sockets."""
    with floor_of("local") as workers:
        yield workers


@pytest.fixture
def met(local: Floor) -> tuple[Worker, Worker]:
    """Two workers over Unix sockets that know by now whether they share memory."""
    alice, bob = local.pair()
    alice.send(bob, 1)
    bob.recorder.envelopes.clear()
    return alice, bob


@pytest.fixture
def log() -> Iterator[AuditLog]:
    """What is recorded in the audit log."""
    with audit_log_of_all() as handler:
        yield handler


@pytest.fixture
def plain() -> Iterator[Floor]:
    """Workers over TCP."""
    with floor_of("tcp") as workers:
        yield workers


@pytest.fixture
def encrypted() -> Iterator[Floor]:
    """Workers over TCP under TLS."""
    with floor_of("self-signed tcp") as workers:
        yield workers


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority that makes certificates."""
    return Authority(tmp_path)
