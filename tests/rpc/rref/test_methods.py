"""What a stand-in takes for a method without asking, and what it asks the owner for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from telegrad import rpc, tensor


class Kinds:
    def plain(self, x: int) -> int:
        return 2 * x

    @staticmethod
    def static(x: int) -> int:
        return 2 * x

    @classmethod
    def of_class(cls, x: int) -> int:
        return 2 * x

    def counted(self, n: int) -> Iterator[int]:
        yield from range(n)

    async def later(self, x: int) -> int:
        return 2 * x

    partial = functools.partialmethod(lambda self, x: 2 * x)

    @functools.lru_cache  # noqa: B019
    def remembered(self, x: int) -> int:
        return 2 * x

    @functools.cached_property
    def cached(self) -> int:
        return 8


def doubled(x: Any) -> Any:
    return x * 2.0


def calls_sent() -> int:
    return rpc.statistics().calls_sent


def test_a_method_is_known_by_its_kind_and_costs_no_message(worker0: None) -> None:
    """Whatever else a class holds is asked for: it may be a descriptor that gives a value."""
    kinds: Any = rpc.remote("worker1", Kinds).rpc_sync()
    octets: Any = rpc.remote("worker1", bytes, (b"ab",)).rpc_sync()
    sent = calls_sent()
    methods = [kinds.plain, kinds.static, kinds.of_class, kinds.later, kinds.partial]
    of_c = [octets.find, octets.fromhex, octets.split]
    assert calls_sent() == sent
    assert [method(4) for method in methods] == [8] * 5
    assert of_c[0](b"b") == 1
    sent = calls_sent()
    assert kinds.remembered(4) == 8  # asked for once
    assert kinds.remembered(5) == 10
    assert kinds.cached == 8
    assert calls_sent() == sent + 4


def test_a_tensor_at_its_owner_does_what_an_array_does(worker0: None) -> None:
    """Its methods come from several classes of telegrad's, all of them open."""
    for made in (tensor, np.array):
        rref = rpc.remote("worker1", doubled, (made([[1.0, 2.0], [3.0, 4.0]]),))
        there: Any = rref.rpc_sync()
        assert there.shape == (2, 2)
        assert there.reshape(4).tolist() == there.reshape((4,)).tolist() == [2.0, 4.0, 6.0, 8.0]
        assert there.sum().item() == 20.0
        assert there.T.tolist() == [[2.0, 6.0], [4.0, 8.0]]


def test_a_call_keeps_the_value_of_its_own_worker(worker0: None) -> None:
    """The reference is let go of while the calls wait for their turn."""
    futures = [rpc.remote("worker0", Kinds).rpc_async().plain(i) for i in range(50)]
    futures += [rpc.RRef(Kinds()).rpc_async().plain(i) for i in range(50)]
    for i in range(50):
        with rpc.RRef(Kinds()) as rref:
            futures.append(rref.rpc_async().plain(i))
    results = [rpc.RRef(Kinds()).remote().plain(i) for i in range(50)]
    streams = [rpc.RRef(Kinds()).rpc_stream().counted(2) for _ in range(50)]
    assert rpc.wait_all(futures) == [2 * i for i in range(50)] * 3
    assert [rref.to_here() for rref in results] == [2 * i for i in range(50)]
    assert [list(stream) for stream in streams] == [[0, 1]] * 50
