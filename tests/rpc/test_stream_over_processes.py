"""Streams between processes: what they carry, and what is left when one of them is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import WorkerLostError
from telegrad.rpc.seams import current_agent
from telegrad.rpc.stream.serving import StreamProducers
from telegrad.testing import Cluster, leaks
from tests.conftest import ROOT, Programs
from tests.repeated import repeated
from tests.rpc import remote_code, stream_code


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    options = rpc.RpcOptions(lost_after=2.0, timeout=20.0)
    with Cluster(3, processes=True, options=options) as cluster:
        yield cluster


def read_all() -> None:
    for func in (stream_code.count, stream_code.acount):
        assert list(rpc.stream("worker1", func, (200,))) == list(range(200))
    big = list(rpc.stream("worker1", stream_code.arrays, (10, 1 << 17)))
    np.testing.assert_array_equal([each[-1] for each in big], range(10))
    items = rpc.stream("worker1", stream_code.fails_after, (3,))
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(remote_code.CustomError, match="in the middle"):
        next(items)


def test_read_to_the_end(cluster: Cluster) -> None:
    cluster.call(0, read_all)


def test_the_program_of_the_guide(programs: Programs) -> None:
    text = (ROOT / "docs" / "streams.md").read_text()
    program = text.partition("```python\n")[2].partition("```")[0]
    command = "telegrad run --nproc-per-node 2 streaming.py"
    said = [line.strip() for line in text.partition(command)[2].partition("\n\n")[0].split("\n")]
    script = programs.script(program, "streaming.py")
    launch = ["telegrad", "run", "--nproc-per-node", "2"]
    output = programs.run([*launch, script])
    assert [line for line in output.splitlines() if line.startswith("[0]")] == said[1:]
    assert len(said) == 5


class Held:
    """What a worker reads while the test kills another one."""

    def __init__(self) -> None:
        self.stream: rpc.Stream[int] | None = None


held = Held()


def begin_to_read(to: str, func: Callable[..., Any]) -> int:
    held.stream = rpc.stream(to, func, ("killed",))
    return next(held.stream)


def read_on() -> str:
    assert held.stream is not None
    before: list[int] = []
    with pytest.raises(WorkerLostError) as info:
        before.extend(held.stream)
    assert before == list(range(1, len(before) + 1))
    return info.value.worker


def produced() -> int:
    return len(current_agent().attached(StreamProducers))


def closed() -> bool:
    return stream_code.counts.wait_closed("killed")


@pytest.mark.parametrize("func", [stream_code.forever, stream_code.aforever])
@repeated
def test_a_producer_that_is_killed(cluster: Cluster, func: Callable[..., Any], run: int) -> None:
    assert cluster.call(0, begin_to_read, "worker1", func) == 0
    cluster.kill(1)
    assert cluster.call(0, read_on) == "worker1"


@pytest.mark.parametrize("func", [stream_code.forever, stream_code.aforever])
@repeated
def test_a_consumer_that_is_killed(cluster: Cluster, func: Callable[..., Any], run: int) -> None:
    assert cluster.call(2, begin_to_read, "worker1", func) == 0
    assert cluster.call(1, produced) == 1
    cluster.kill(2)
    leaks.wait_until_gone("streams", lambda: range(cluster.call(1, produced)), within=20.0)
    assert cluster.call(1, closed)
