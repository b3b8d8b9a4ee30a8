from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad.rpc import RpcOptions, seams
from telegrad.testing import Cluster
from tests.rpc.rref.programs import N, closed, gates

# Short: the reply that brings an error keeps the frames of its traceback, and the references in
# them, until its receipt comes, with the next heartbeat at the latest. There are five in a bound.
OPTIONS = RpcOptions(timeout=20.0, lost_after=2.0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    gates.clear()
    with Cluster(N, options=OPTIONS) as made:
        yield made


@pytest.fixture
def worker0(cluster: Cluster) -> Iterator[None]:
    """Has the test run on worker0; no stream and no reference may be left when it has ended."""
    with seams.use_agent(cluster.call(0, seams.current_agent)):
        yield
    closed(cluster)
