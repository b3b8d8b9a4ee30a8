from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad.rpc import RpcOptions
from telegrad.testing import Cluster
from tests.rpc.rref.programs import N, gates, promises

# Short: the reply that brings an error keeps the frames of its traceback, and the references in
# them, until its receipt comes, with the next heartbeat at the latest. There are five in a bound.
OPTIONS = RpcOptions(timeout=20.0, lost_after=2.0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    gates.clear()
    promises.clear()
    with Cluster(N, options=OPTIONS) as made:
        yield made
