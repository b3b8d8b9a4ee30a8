"""What a worker has no memory or no thread for fails, at both ends, and nothing else does.

Under `ulimit -v` an array for which there was no memory lost the whole worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from telegrad import rpc
from telegrad.errors import PoolExhaustedError
from telegrad.rpc.future.waits import PoolThread
from telegrad.testing import Cluster
from tests.rpc.promises import memory_code as code

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


@pytest.mark.few(1)
def test_arguments_without_memory_fail_their_call(pair: Cluster) -> None:
    with pytest.raises(
        MemoryError, match=f"'worker1' cannot read the arguments of .*echo.*{WORDS}"
    ):
        pair.call(0, code.send, "worker1", code.LARGE)
    assert pair.call(0, code.send, "worker1", 1) == 1


@pytest.mark.few(1)
def test_a_value_without_memory_fails_its_call(pair: Cluster) -> None:
    with pytest.raises(MemoryError, match=f"'worker1' cannot read the value of .*make.*{WORDS}"):
        pair.call(1, code.fetch, "worker0", code.LARGE)
    assert pair.call(1, code.fetch, "worker0", 1) == 1


@pytest.mark.few(1)
def test_an_item_without_memory_ends_its_stream(pair: Cluster) -> None:
    with pytest.raises(MemoryError, match=f"'worker1' cannot read the value of .*items.*{WORDS}"):
        pair.call(1, code.read, "worker0")
    assert pair.call(1, code.fetch, "worker0", 1) == 1


@pytest.mark.few(1)
def test_an_operation_without_memory_fails_at_every_rank(pair: Cluster) -> None:
    for said in pair.run(code.broadcast, code.LARGE):
        assert re.match(f"worker 'worker1' cannot read data of 'worker0': .*{WORDS}", said)
    assert pair.run(code.broadcast, 1) == ["1", "1"]


def start_no_threads_of(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = PoolThread.start

    def refuse(thread: PoolThread) -> None:
        if thread.name.startswith(f"{worker}-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(PoolThread, "start", refuse)


@pytest.mark.long
def test_a_call_without_a_thread_names_the_limit() -> None:
    """It was waited for until its time was over."""
    with Cluster(2, processes=True) as cluster:
        said = cluster.call(0, code.nest, "worker1")
        assert re.match(r".*'worker1' .*`ulimit -v` allows it \d+ MiB.* it said yes$", said)
        cluster.kill(1)


@pytest.mark.long
def test_a_stream_whose_reader_has_no_thread_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start_no_threads_of("worker0", monkeypatch)
    with Cluster(2) as cluster, pytest.raises(PoolExhaustedError, match="starts no further thread"):
        cluster.call(0, lambda: list(rpc.stream("worker1", code.numbers, (3,))))
