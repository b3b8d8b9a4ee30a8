"""Streams between processes: what they carry, and what is left when one of them is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from telegrad import rpc
from telegrad.testing import Cluster, leaks
from tests.conftest import ROOT, Programs
from tests.repeated import repeated
from tests.rpc import stream_code


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    options = rpc.RpcOptions(lost_after=2.0, timeout=20.0)
    with Cluster(3, processes=True, options=options) as cluster:
        yield cluster


def test_read_to_the_end(cluster: Cluster) -> None:
    assert "in the middle" in cluster.call(0, stream_code.read_all)


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


@pytest.mark.parametrize("func", [stream_code.forever, stream_code.aforever])
@repeated
def test_a_producer_that_is_killed(cluster: Cluster, func: Callable[..., Any], run: int) -> None:
    assert cluster.call(0, stream_code.begin_to_read, "worker1", func) == 0
    cluster.kill(1)
    assert cluster.call(0, stream_code.read_on) == "worker1"


@pytest.mark.parametrize("func", [stream_code.forever, stream_code.aforever])
@repeated
def test_a_consumer_that_is_killed(cluster: Cluster, func: Callable[..., Any], run: int) -> None:
    assert cluster.call(2, stream_code.begin_to_read, "worker1", func) == 0
    assert cluster.call(1, stream_code.produced) == 1
    cluster.kill(2)
    leaks.wait_until_gone(
        "streams", lambda: range(cluster.call(1, stream_code.produced)), within=20.0
    )
    assert cluster.call(1, stream_code.closed)
