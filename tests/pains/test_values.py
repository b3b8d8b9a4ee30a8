"""Pains of users: references that leak, messages with a limit, arrays that arrive read-only."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse

from telegrad import rpc
from telegrad.errors import OwnerLostError
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.pains.remote_code import (
    echo,
    keeps,
    kept,
    own_one,
    owned_by_me,
    size_and_last,
)

MIB, GIB = 2**20, 2**30
# Around gRPC's default limit of a message, and beyond.
SIZES = (0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB)


@dataclass
class Held:
    """References inside a dataclass, which may refer to itself."""

    rrefs: list[rpc.RRef[list[int]]]
    other: Held | None = None


def drop_many(to: str) -> int:
    """References alone, in containers, in results and in cycles; none is kept."""
    for _ in range(50):
        made: rpc.RRef[list[int]] = rpc.remote(to, list, ((1, 2),))
        back = rpc.rpc_sync(to, echo, ({"one": made, "two": Held([made])},))
        handed = rpc.rpc_sync(to, own_one)
        cycle = Held([made, handed, back["one"], *back["two"].rrefs])
        cycle.other = cycle
    del made, back, handed, cycle
    gc.collect()
    wait_until_gone("references", lambda: [str(n) for n in [rpc.rpc_sync(to, owned_by_me)] if n])
    return rpc.statistics().user_rrefs


def test_pain_13_references_leak() -> None:
    with Cluster(2) as cluster:
        assert cluster.call(0, drop_many, "worker1") == 0


def own_and_share(with_whom: str) -> None:
    rpc.rpc_sync(with_whom, keeps, (rpc.RRef([1]),))


def is_free() -> None:
    wait_until_gone("references", lambda: [str(n) for n in [owned_by_me()] if n])


def test_pain_13_references_of_a_crashed_worker_leak() -> None:
    """What a killed user held is freed at its owner; who held what it owned is told."""
    with Cluster(3, options=rpc.RpcOptions(lost_after=0.5)) as cluster:
        cluster.call(0, own_and_share, "worker1")
        mine = cluster.call(2, rpc.rpc_sync, "worker1", own_one)
        assert cluster.call(0, owned_by_me) == 1
        cluster.kill(1)
        cluster.call(0, is_free)
        with pytest.raises(OwnerLostError, match="worker1"):
            cluster.call(2, mine.to_here)
        kept.clear()


def sizes_come_back(to: str) -> list[int]:
    """Arrays, bytes and text, which take different ways."""
    rng = np.random.default_rng(0)
    wrong = []
    for size in SIZES:
        data = rng.bytes(size)
        array = np.frombuffer(data, np.uint8)
        back, text = rpc.rpc_sync(to, echo, ([data, "a" * size],))
        if back != data or len(text) != size:
            wrong.append(size)
        if not np.array_equal(rpc.rpc_sync(to, echo, (array,)), array):
            wrong.append(size)
    return wrong


def admitted_beside(array: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """The bytes that came, and all that are here or on their way while this is served."""
    return array.size, rpc.statistics().admitted_bytes


def a_hundred_at_once(to: str) -> tuple[int, int]:
    """More than the callee takes in at once: the rest waits here; returns the sum and the peak."""
    array = np.ones(MIB, np.uint8)
    pushes = [rpc.rpc_async(to, admitted_beside, (array,)) for _ in range(100)]
    sizes, admitted = zip(*rpc.wait_all(pushes), strict=True)
    return sum(sizes), max(admitted)


def test_pain_22_messages_have_a_limit() -> None:
    """Nobody sees one: not of a message, and not of the memory that a hundred pushes fill."""
    options = rpc.RpcOptions(limits=rpc.Limits(pending_bytes=8 * MIB), lost_after=1000.0)
    with Cluster(2, options=options) as cluster:
        assert cluster.call(0, sizes_come_back, "worker1") == []
        size, peak = cluster.call(0, a_hundred_at_once, "worker1")
    assert size == 100 * MIB
    assert MIB < peak <= 8 * MIB


def push_more_than_2_gib(to: str) -> tuple[int, int]:
    """Lets go of its array before it is told of a loss, if there was one."""
    array = np.ones(2 * GIB + 1, np.uint8)
    return rpc.rpc_sync(to, size_and_last, (array,), timeout=300)


@pytest.mark.long
def test_pain_22_more_than_2_gib_and_nobody_is_taken_for_dead() -> None:
    """A copy under the interpreter's lock would take as long as silence may last here."""
    options = rpc.RpcOptions(lost_after=1.5)
    with Cluster(2, processes=True, options=options) as cluster:
        assert cluster.call(0, push_more_than_2_gib, "worker1") == (2 * GIB + 1, 1)


ARRAYS: list[npt.NDArray[np.generic]] = [
    np.arange(6.0).reshape(2, 3)[:, ::2],
    np.array(3.0),
    np.empty((0, 4), np.float32),
    np.arange(4, dtype=">i4"),
    np.array([1 + 2j, 3]),
    np.array([1.5, 2.5], np.float16),
    np.array([(1, 2.0), (3, 4.0)], [("n", "i4"), ("x", "f8")]),
    np.array([True, False]),
    np.array(["2026-01-01"], "datetime64[D]"),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
]


def arrays_come_back(to: str) -> None:
    """Of the same dtype and shape, writable, and nobody else's."""
    for array in ARRAYS:
        back = rpc.rpc_sync(to, echo, (array,))
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.flags.writeable
        assert not np.shares_memory(back, array)
        np.testing.assert_array_equal(back, array)
        back[...] = np.zeros_like(back)


def test_pain_29_arrays_arrive_read_only() -> None:
    with Cluster(2) as cluster:
        cluster.call(0, arrays_come_back, "worker1")
        cluster.call(0, arrays_come_back, "worker0")  # nor does a call to oneself share memory


def sparse_comes_back(to: str) -> int:
    rows = scipy.sparse.random_array((1000, 64), density=0.01, format="csr", rng=0)
    before = rpc.statistics().bytes_sent
    back = rpc.rpc_sync(to, echo, (rows,))
    assert back.format == "csr"
    assert (back != rows).nnz == 0
    return rpc.statistics().bytes_sent - before


def test_pain_34_sparse_values_are_sent_dense() -> None:
    with Cluster(2) as cluster:
        assert cluster.call(0, sparse_comes_back, "worker1") < 1000 * 64 * 8 / 10


class Weights:
    """A type of the user's, which counts how often it is encoded."""

    def __init__(self, array: npt.NDArray[np.float64]) -> None:
        self.array = array
        self.encoded = 0


def encode(weights: Weights) -> npt.NDArray[np.float64]:
    weights.encoded += 1
    return weights.array


rpc.register_type(Weights, encode=encode, decode=Weights)


def total(weights: Weights) -> float:
    return float(weights.array.sum())


def tell_everybody(n: int) -> tuple[list[float], int]:
    weights = Weights(np.ones(100_000))
    args = (weights,)
    answers = rpc.gather([(f"worker{r}", total, args) for r in range(1, n)]).wait()
    return answers, weights.encoded


def test_pain_30_an_argument_is_encoded_once_for_each_destination() -> None:
    """Once for all of them."""
    with Cluster(4) as cluster:
        assert cluster.call(0, tell_everybody, 4) == ([100_000.0] * 3, 1)
