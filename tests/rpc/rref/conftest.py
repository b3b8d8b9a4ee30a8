from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad.rpc import RpcOptions
from telegrad.testing import Cluster
from tests.rpc.rref.programs import N, gates, promises


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    gates.clear()
    promises.clear()
    with Cluster(N, options=RpcOptions(timeout=20.0)) as made:
        yield made
