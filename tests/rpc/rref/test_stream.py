"""Generators of a value, streamed through an RRef to it."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import CallRefusedError, CallTimeoutError
from telegrad.rpc import RRef
from telegrad.rpc.seams import current_agent, reference_of
from telegrad.rpc.stream.protocol import WINDOW_ITEMS
from telegrad.rpc.stream.serving import StreamProducers
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.rpc.rref.programs import GateError, closed, gates, make_slowly, on


class Numbers:
    """What the streams read; its generators note how far they ran."""

    last: ClassVar[Numbers]

    def __init__(self, start: int = 0) -> None:
        Numbers.last = self
        self.start = start
        self.yielded = 0
        self.closed = threading.Event()
        self.made = iter(range(3))

    def count(self, n: int) -> Iterator[int]:
        try:
            for i in range(n):
                self.yielded += 1
                yield self.start + i
        finally:
            self.closed.set()

    async def acount(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(0)
            yield self.start + i

    def squares(self, n: int) -> Iterator[int]:
        return (x * x for x in range(n))

    def __call__(self, n: int) -> Iterator[int]:
        yield from [self.start] * n

    def fails_after(self, n: int) -> Iterator[int]:
        yield from range(n)
        raise GateError("in the middle")

    def rrefs_in(self, rrefs: list[RRef[Any]]) -> Iterator[bool]:
        for each in rrefs:
            yield each.confirmed_by_owner()

    def answer(self) -> int:
        return 42

    @property
    def foreign(self) -> Callable[..., Any]:
        return subprocess.getoutput


def read_all(rref: RRef[Numbers], method: str, n: int) -> list[Any]:
    return list(getattr(rref.rpc_stream(), method)(n))


async def read_all_later(rref: RRef[Numbers], method: str, n: int) -> list[Any]:
    return [each async for each in getattr(rref.rpc_stream(), method)(n)]


def known_to_have_failed(rref: RRef[Any]) -> None:
    reference = reference_of(rref)
    failure = reference.registry.failure
    wait_until_gone("hope", lambda: [] if failure(reference) else ["the value may yet be made"])


EITHER = ["count", "acount"]


@pytest.mark.few(1)
@pytest.mark.parametrize("method", EITHER)
@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_items_come_in_order(worker0: None, owner: str, method: str) -> None:
    rref = rpc.remote(owner, Numbers, (7,))
    for n in (0, 1, 200):
        assert read_all(rref, method, n) == list(range(7, 7 + n))
    assert rpc.rpc_sync("worker2", read_all, (rref, method, 100)) == list(range(7, 107))
    assert rpc.rpc_sync("worker2", read_all_later, (rref, method, 100)) == list(range(7, 107))

    async def read() -> list[int]:
        return [each async for each in getattr(rref.rpc_stream(), method)(50)]

    assert asyncio.run(read()) == list(range(7, 57))


def test_every_kind_of_method(worker0: None) -> None:
    rref = rpc.remote("worker1", Numbers, (7,))
    stream: Any = rref.rpc_stream()
    assert list(stream.squares(4)) == [0, 1, 4, 9]
    assert list(stream(3)) == [7, 7, 7]
    assert "Numbers.count at 'worker1', not called" in repr(stream.count)
    own = RRef(Numbers(1))
    assert list(own.rpc_stream().count(2)) == [1, 2]


def test_a_generator_runs_no_further_ahead_than_any_stream(cluster: Cluster) -> None:
    """The fork of the RRef is kept meanwhile, though the program has let go of it."""

    def body() -> None:
        rref = rpc.remote("worker1", Numbers)
        stream = rref.rpc_stream().count(2**40)
        producers = cluster.call(1, lambda: current_agent().attachments[StreamProducers])
        wait_until_gone("running", lambda: [] if producers.resting == 1 else ["a generator"])
        assert Numbers.last.yielded == WINDOW_ITEMS
        rref.release()
        used = rpc.statistics().user_rrefs
        assert [next(stream) for _ in range(100)] == list(range(100))
        assert used == rpc.statistics().user_rrefs == 1
        stream.close()
        wait_until_gone("forks", lambda: ["one"] * rpc.statistics().user_rrefs)
        assert Numbers.last.closed.wait(20)

    on(cluster, 0, body)
    closed(cluster)


def test_errors_come_in_their_place(worker0: None) -> None:
    rref = rpc.remote("worker1", Numbers)
    untyped: Any = rref.rpc_stream()
    items = untyped.fails_after(3)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(GateError, match="in the middle"):
            next(items)
    with pytest.raises(AttributeError, match="nothing"):
        next(untyped.nothing())
    with pytest.raises(TypeError, match=r"Numbers\.answer returned int.*rpc\.rpc_sync"):
        next(untyped.answer())
    with pytest.raises(TypeError, match=r"Numbers\.start is no method but int"):
        next(untyped.start())
    with pytest.raises(TypeError, match=r"Numbers\.made is no method but range_iterator"):
        next(untyped.made())


def test_the_policy_is_that_of_calls(worker0: None) -> None:
    untyped: Any = rpc.remote("worker1", Numbers).rpc_stream()
    with pytest.raises(CallRefusedError, match="subprocess"):
        next(untyped.foreign("echo run"))


def test_a_value_that_is_still_made_is_waited_for_without_a_thread(worker0: None) -> None:
    gates["slow"] = threading.Event()
    rref: RRef[Any] = rpc.remote("worker1", make_slowly, ("slow", [1, 2, 3]))
    with pytest.raises(CallTimeoutError, match="next item"):
        next(rref.rpc_stream(timeout=0.05)("never"))
    gates["slow"].set()
    failed: RRef[Any] = rpc.remote("worker1", make_slowly, ("slow", None))
    with pytest.raises(GateError, match="the gate is shut"):
        next(failed.rpc_stream().anything())
    known_to_have_failed(failed)
    sent = rpc.statistics().calls_sent
    with pytest.raises(GateError, match="the gate is shut"):
        next(failed.rpc_stream().anything())
    assert rpc.statistics().calls_sent == sent


def make_numbers(gate: str) -> Numbers:
    assert gates[gate].wait(30)
    return Numbers(5)


def test_a_stream_opened_before_its_value_is_there(worker0: None) -> None:
    gates["slow"] = threading.Event()
    rref = rpc.remote("worker1", make_numbers, ("slow",))
    streams = [rref.rpc_stream().count(20) for _ in range(20)]
    given_up = rref.rpc_stream().count(20)
    given_up.close()
    gates["slow"].set()
    assert [list(each) for each in streams] == [list(range(5, 25))] * 20


def test_it_starts_when_the_rrefs_that_it_is_given_are_counted(worker0: None) -> None:
    theirs = [rpc.remote("worker2", np.zeros, (1,)) for _ in range(5)]
    rref = rpc.remote("worker1", Numbers)
    assert list(rref.rpc_stream().rrefs_in(theirs)) == [True] * 5
