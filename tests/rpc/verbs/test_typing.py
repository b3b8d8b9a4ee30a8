"""What a type checker says of calls: mypy reads this file with the rest of the tests.

`assert_type` does nothing when it runs; the functions are run all the same, over one agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import pytest

from telegrad import rpc
from tests.conftest import TOKEN


class Counter:
    """What an RRef refers to."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, more: int) -> int:
        """Returns the sum."""
        self.value += more
        return self.value

    def count(self, n: int) -> Iterator[int]:
        """Yields the next values."""
        yield from range(self.value, self.value + n)


def plain(x: int) -> str:
    return str(x)


async def coroutine(x: int) -> str:
    return str(x)


@rpc.functions.async_execution
def later(x: int) -> rpc.Future[str]:
    future: rpc.Future[str] = rpc.Future()
    future.set_result(str(x))
    return future


def numbers(n: int) -> Iterator[int]:
    yield from range(n)


async def numbers_async(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


def verbs_of_the_ambient_agent(agent: rpc.Agent) -> None:
    with agent.as_current() as current:
        assert_type(current, rpc.Agent)
        assert_type(rpc.rpc_sync(0, plain, (1,)), str)
        assert_type(rpc.rpc_sync(0, coroutine, (1,)), str)
        assert_type(rpc.rpc_sync(0, later, (1,)), str)
        assert_type(rpc.rpc_async(0, plain, (1,)), rpc.Future[str])
        assert_type(rpc.rpc_async(0, coroutine, (1,)), rpc.Future[str])
        assert_type(rpc.rpc_async(0, later, (1,)), rpc.Future[str])
        assert_type(rpc.remote(0, Counter, (1,)), rpc.RRef[Counter])
        assert_type(rpc.remote(0, coroutine, (1,)), rpc.RRef[str])


def verbs_of_an_agent(agent: rpc.Agent) -> None:
    assert_type(agent.rpc_sync(0, plain, (1,)), str)
    assert_type(agent.rpc_sync(0, coroutine, (1,)), str)
    assert_type(agent.rpc_sync(0, later, (1,)), str)
    assert_type(agent.rpc_async(0, plain, (1,)), rpc.Future[str])
    assert_type(agent.rpc_async(0, coroutine, (1,)), rpc.Future[str])
    assert_type(agent.rpc_async(0, later, (1,)), rpc.Future[str])
    assert_type(agent.remote(0, coroutine, (1,)), rpc.RRef[str])
    assert_type(agent.remote(0, later, (1,)), rpc.RRef[str])
    assert_type(agent.get_worker_info(), rpc.WorkerInfo)
    assert_type(agent.get_worker_infos(), list[rpc.WorkerInfo])


def streams_of_an_agent(agent: rpc.Agent) -> None:
    with agent.stream(0, numbers, (3,)) as items:
        assert_type(items, rpc.Stream[int])
        assert list(items) == [0, 1, 2]
    with agent.stream(0, numbers_async, (3,)) as items:
        assert_type(items, rpc.Stream[int])
        assert list(items) == [0, 1, 2]


def references(agent: rpc.Agent) -> None:
    rref = agent.remote(0, Counter, (1,))
    assert_type(rref, rpc.RRef[Counter])
    assert_type(rref.rpc_sync(), Counter)
    assert_type(rref.rpc_sync().add(2), int)
    assert_type(rref.local_value(), Counter)
    assert_type(rref.rpc_async().add(2), rpc.Future[Any])
    assert_type(rref.remote().add(2), rpc.RRef[Any])
    assert_type(rref.rpc_stream().count(2), rpc.Stream[Any])
    rref.release()


@pytest.mark.parametrize(
    "typed", [verbs_of_the_ambient_agent, verbs_of_an_agent, streams_of_an_agent, references]
)
def test_the_types_that_are_declared_are_those_of_calls_that_work(
    typed: Callable[[rpc.Agent], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TELEGRAD_TOKEN", TOKEN)
    with rpc.Agent("typed") as agent:
        typed(agent)
