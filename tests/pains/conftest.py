"""What the tests of pains share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad import rpc
from tests.pains.remote_code import TOKEN


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No job around this process, and none left behind."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TELEGRAD_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TELEGRAD_TOKEN", TOKEN)
    yield
    rpc.shutdown(graceful=False)
