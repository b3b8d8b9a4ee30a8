"""An array for which a worker has no memory fails its call, at both ends, and nothing else.

Under `ulimit -v` such an array lost the whole worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from tests.rpc import memory_code as code

WORDS = rf"process \d+, has no memory for {code.LARGE} bytes of .*`ulimit -v` allows it \d+ MiB"


@pytest.fixture(scope="module", params=["local", "tcp", False])
def pair(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two workers, of which worker1 may have little memory."""
    options = rpc.RpcOptions(direct=request.param, timeout=30.0)
    with Cluster(2, processes=True, options=options) as cluster:
        cluster.run(code.join)
        cluster.call(0, code.warm_up, "worker1")
        cluster.call(1, code.warm_up, "worker0")
        cluster.call(1, code.limit)
        yield cluster
        assert cluster.call(0, code.send, "worker1", code.MIB) == code.MIB  # neither lost the other


def test_arguments_without_memory_fail_their_call(pair: Cluster) -> None:
    with pytest.raises(
        MemoryError, match=f"'worker1' cannot read the arguments of .*echo.*{WORDS}"
    ):
        pair.call(0, code.send, "worker1", code.LARGE)
    assert pair.call(0, code.send, "worker1", 1) == 1


def test_a_value_without_memory_fails_its_call(pair: Cluster) -> None:
    with pytest.raises(MemoryError, match=f"'worker1' cannot read the value of .*make.*{WORDS}"):
        pair.call(1, code.fetch, "worker0", code.LARGE)
    assert pair.call(1, code.fetch, "worker0", 1) == 1


def test_an_item_without_memory_ends_its_stream(pair: Cluster) -> None:
    with pytest.raises(MemoryError, match=f"'worker1' cannot read the value of .*items.*{WORDS}"):
        pair.call(1, code.read, "worker0")
    assert pair.call(1, code.fetch, "worker0", 1) == 1


def test_an_operation_without_memory_fails_at_every_rank(pair: Cluster) -> None:
    for said in pair.run(code.broadcast, code.LARGE):
        assert re.match(f"worker 'worker1' cannot read data of 'worker0': .*{WORDS}", said)
    assert pair.run(code.broadcast, 1) == ["1", "1"]
