"""Nested calls: what a level costs, at every depth the same; and calls made in a callback."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from telegrad import rpc
from telegrad.rpc import statistics
from telegrad.testing import Cluster
from tests.counting import counted

DEPTH = 60


def down(levels: int) -> int:
    """Calls itself on the other worker, so many levels deep; returns the threads at the bottom."""
    if not levels:
        return threading.active_count()
    other = f"worker{1 - rpc.get_worker_info().rank}"
    return rpc.rpc_sync(other, down, (levels - 1,))


def nested(levels: int) -> tuple[int, int]:
    """Returns the threads at the bottom, and the calls that this worker has sent for it."""
    before = statistics().calls_sent
    threads = rpc.rpc_sync("worker1", down, (levels,))
    return threads, statistics().calls_sent - before


def test_twice_the_depth_is_twice_the_messages_and_threads() -> None:
    found: list[tuple[int, int, dict[str, int]]] = []
    with Cluster(2) as cluster:
        cluster.call(0, nested, DEPTH)  # what is made once
        for levels in (DEPTH, 2 * DEPTH):
            with counted() as work:
                threads, calls = cluster.call(0, nested, levels)
            found.append((threads, calls, dict(work.envelopes)))
    (few, calls, once), (many, more_calls, twice) = found
    assert (calls, more_calls) == (DEPTH // 2 + 1, DEPTH + 1)  # half of them are the other worker's
    for sent, levels in ((once, DEPTH), (twice, 2 * DEPTH)):
        assert sum(sent.values()) == 2 * (levels + 1), sent  # a request and a reply
    assert many - few <= DEPTH + 4, (few, many)  # one thread a level, and those of the pool


def ones(size: int) -> NDArray[np.float64]:
    """Returns an array that travels by lanes, as workers of one process share no memory."""
    return np.ones(size)


def chained(size: int) -> NDArray[np.float64]:
    """Calls for a second array when the first has come."""
    first = rpc.rpc_async("worker1", ones, (size,))
    return first.then(lambda _: rpc.rpc_sync("worker1", ones, (size,))).wait()


def test_a_callback_may_call_for_another_large_array() -> None:
    """It ran in the thread that reads the lane on which the second array comes."""
    size = 2**20
    with Cluster(2, limit=20.0) as cluster:
        assert cluster.call(0, chained, size).sum() == size
