"""The error of a value that could not be made says where, to its owner as to everybody else."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from tests.rpc.rref.programs import await_it, drained, on


def no_weights(name: str) -> None:
    raise KeyError(name)


class Broken:
    def __init__(self) -> None:
        no_weights("Broken")


async def broken_coroutine() -> None:
    no_weights("a coroutine")


@rpc.functions.async_execution
def broken_future() -> rpc.Future[None]:
    return rpc.rpc_async("worker2", no_weights, ("a future",))


class Stubborn(KeyError):
    """Cannot be copied: its words are not in its arguments."""

    def __str__(self) -> str:
        return f"{id(self)}"


def broken_stubbornly() -> None:
    raise Stubborn


WAYS: dict[str, Callable[[Any], Any]] = {
    "local_value": lambda rref: rref.local_value(),
    "to_here": lambda rref: rref.to_here(),
    "await": lambda rref: asyncio.run(await_it(rref)),
    "rpc_sync": lambda rref: rref.rpc_sync().method(),
}


def told(rref: Any, way: str, times: int = 2) -> list[str]:
    """Returns what Python prints of the error, each time that the value is asked for."""
    texts = []
    for _ in range(times):
        try:
            WAYS[way](rref)
        except KeyError as error:
            texts.append("".join(traceback.format_exception(error)))
    return texts


def own_value(func: Callable[[], Any], way: str) -> list[str]:
    with rpc.remote(rpc.get_worker_info(), func) as rref:
        return told(rref, way)


@pytest.mark.parametrize("func", [Broken, broken_coroutine, broken_future])
def test_an_error_shows_the_line_of_the_user_that_raised(
    cluster: Cluster, func: Callable[[], Awaitable[Any]], subtests: pytest.Subtests
) -> None:
    def body() -> None:
        rref = rpc.remote("worker1", func)
        for way in WAYS:
            with subtests.test(way, who="an owner that made it itself"):
                check(rpc.rpc_sync("worker1", own_value, (func, way)))
            with subtests.test(way, who="the owner"):
                check(rpc.rpc_sync("worker1", told, (rref, way)))
            if way != "local_value":
                with subtests.test(way, who="the creator"):
                    check(told(rref, way))
                with subtests.test(way, who="another worker"):
                    check(rpc.rpc_sync("worker2", told, (rref, way)))

    def check(texts: list[str]) -> None:
        assert len(texts) == 2
        for text in texts:
            assert "raise KeyError(name)" in text
            assert "KeyError: " in text

    on(cluster, 0, body)
    drained(cluster)


def test_an_error_that_cannot_be_copied_collects_no_frames(worker0: None) -> None:
    texts = rpc.rpc_sync("worker1", own_value, (broken_stubbornly, "local_value"))
    assert len(texts) == 2
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())
