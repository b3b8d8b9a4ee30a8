"""Arrays between processes of one host, in memory that both map: equal, one's own, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import WorkerLostError
from telegrad.testing import Cluster
from tests.rpc.promises.carriers import shared_code

SIZE = 2**20


OPTIONS = rpc.RpcOptions(lost_after=5.0, timeout=30.0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two workers that all tests use in turn which leave them alive."""
    with Cluster(2, processes=True, options=OPTIONS) as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(2, processes=True, options=OPTIONS) as cluster:
        yield cluster


def test_arrays_of_all_kinds_arrive_as_they_were(pair: Cluster) -> None:
    pair.call(0, shared_code.round_trips)
    assert pair.call(0, shared_code.moved)[0] > SIZE


@pytest.mark.parametrize("calls", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_many_calls_take_nothing_with_them(pair: Cluster, calls: int) -> None:
    pair.call(0, shared_code.call_often, 20)
    before, moved = pair.run(shared_code.resources), pair.call(0, shared_code.moved)
    pair.call(0, shared_code.call_often, calls)
    assert pair.run(shared_code.resources) == before
    now = pair.call(0, shared_code.moved)
    assert (now[0] - moved[0], now[2] - moved[2]) == (calls * 320_000, 0)


def test_a_callee_that_keeps_all_arrays(pair: Cluster) -> None:
    pair.call(0, shared_code.keep_there, 300)
    firsts = [k % 250 for k in range(300)]
    assert pair.call(1, shared_code.check_kept, True) == firsts
    pair.call(0, shared_code.keep_there, 300)  # in the same memory
    assert pair.call(1, shared_code.check_kept, True) == firsts


def test_a_killed_worker_maps_nothing_and_what_it_sent_lives_on(cluster: Cluster) -> None:
    assert cluster.call(0, shared_code.hold_while_lost) == 2**17 - 1
    cluster.call(0, shared_code.keep_there, 30)
    cluster.kill(1)
    with pytest.raises(WorkerLostError):
        cluster.call(0, rpc.rpc_sync, "worker1", shared_code.echo, (1,))
    cluster.call(0, shared_code.let_go)


def test_over_tcp_nothing_is_shared() -> None:
    with Cluster(2, processes=True, options=rpc.RpcOptions(direct="tcp")) as cluster:
        copies, moved = cluster.call(0, shared_code.copies_of, SIZE)
        assert SIZE in copies
        assert moved[:2] == (0, 0)
        assert cluster.run(shared_code.mapped) == [0, 0]


@pytest.mark.long
def test_a_shared_array_travels_as_it_is(pair: Cluster) -> None:
    """Both see what the other one writes; a slice of it, and what shares no memory, is a copy."""
    copies, moved = pair.call(0, shared_code.share, SIZE)
    assert copies == 0
    assert moved == (2 * SIZE, 0, 0)


@pytest.mark.long
def test_one_message_for_several_workers_is_nobody_else_s() -> None:
    """A multicast is copied once, and each gets what it may write to."""
    with Cluster(3) as cluster:
        array = np.zeros(100_000)
        calls: list[object] = [
            (to, shared_code.total, (array,)) for to in ("worker1", "worker2") * 2
        ]
        assert cluster.call(0, _gathered, calls) == [array.size] * 4


def _gathered(calls: list[object]) -> object:
    return rpc.gather(calls).wait()  # type: ignore[arg-type]


@pytest.mark.long
def test_no_memory_for_the_copy_of_a_reply_is_the_answer(cluster: Cluster) -> None:
    """It is copied after the function has returned, when it is known that something has it still."""
    cluster.call(1, shared_code.have_no_memory)
    cluster.call(0, rpc.rpc_sync, "worker1", shared_code.echo, (0,))  # they share memory from here
    with pytest.raises(MemoryError, match="none left"):
        cluster.call(0, rpc.rpc_sync, "worker1", shared_code.echo, (np.zeros(SIZE),))
    assert cluster.call(1, rpc.statistics).calls_served == 2
