"""Functions that want to end the program, in every way in which code of users is run."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn

from telegrad import rpc
from tests.rpc import remote_code
from tests.rpc.turns import turn

ERRORS = (SystemExit, KeyboardInterrupt, GeneratorExit)


def leaves(kind: int = 0, *_: object) -> NoReturn:
    raise ERRORS[kind]("out")


async def awaits_nothing(kind: int) -> None:
    leaves(kind)


async def after_an_await(kind: int) -> None:
    await turn()
    leaves(kind)


async def in_a_task(kind: int) -> None:
    await asyncio.create_task(after_an_await(kind))


async def in_a_gather(kind: int) -> None:
    await asyncio.gather(after_an_await(kind), turn())


async def in_a_group(kind: int) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(after_an_await(kind))
    except BaseExceptionGroup as failed:  # as which it raises what is neither of both exits
        raise failed.exceptions[0] from None


async def in_a_thread(kind: int) -> None:
    await rpc.to_thread(leaves, kind)


async def in_a_thread_of_asyncio(kind: int) -> None:
    await asyncio.to_thread(leaves, kind)


async def in_then(kind: int) -> None:
    await rpc.rpc_async("w2", remote_code.who).then(lambda _: leaves(kind))


class Made:
    """Leaves in a method, a coroutine, a property."""

    def method(self, kind: int) -> None:
        leaves(kind)

    async def coroutine(self, kind: int) -> None:
        leaves(kind)

    async def __call__(self, kind: int) -> None:
        leaves(kind)


class MadeNever:
    def __init__(self, kind: int) -> None:
        leaves(kind)


@rpc.functions.async_execution
def before_its_future(kind: int) -> rpc.Future[None]:
    leaves(kind)


@rpc.functions.async_execution
def in_its_future(kind: int) -> rpc.Future[None]:
    return rpc.rpc_async("w2", remote_code.who).then(lambda _: leaves(kind))


@dataclasses.dataclass
class Unsendable:
    """Leaves while it is encoded, or decoded."""

    kind: int
    where: str


def _encode(value: Unsendable) -> list[Any]:
    if value.where == "encode":
        leaves(value.kind)
    return [value.kind, value.where]


def _decode(plain: list[Any]) -> Unsendable:
    if plain[1] == "decode":
        leaves(plain[0])
    return Unsendable(*plain)


rpc.register_type(Unsendable, encode=_encode, decode=_decode)


def returns_unsendable(kind: int) -> Unsendable:
    return Unsendable(kind, "encode")


async def awaits_unsendable(kind: int) -> Unsendable:
    return Unsendable(kind, "encode")


def takes(value: object) -> None:
    del value


class Wordless(Exception):
    """Leaves while it is put in words."""

    def __str__(self) -> str:
        leaves()


def raises_wordless(kind: int) -> None:
    raise Wordless(kind)


CALLS: list[Callable[..., Any]] = [
    leaves,
    awaits_nothing,
    after_an_await,
    in_a_task,
    in_a_gather,
    in_a_group,
    in_a_thread,
    in_a_thread_of_asyncio,
    in_then,
    before_its_future,
    in_its_future,
    returns_unsendable,
    awaits_unsendable,
]


def yields_and_leaves(kind: int) -> Iterator[int]:
    yield 1
    leaves(kind)


def leaves_when_closed(kind: int) -> Iterator[int]:
    try:
        yield 1
    finally:
        leaves(kind)


def yields_unsendable(kind: int) -> Iterator[Any]:
    yield 1
    yield Unsendable(kind, "encode")


async def ayields_and_leaves(kind: int) -> AsyncIterator[int]:
    yield 1
    leaves(kind)


async def ayields_unsendable(kind: int) -> AsyncIterator[Any]:
    yield 1
    yield Unsendable(kind, "encode")


STREAMS: list[Callable[..., Any]] = [
    yields_and_leaves,
    leaves_when_closed,
    yields_unsendable,
    ayields_and_leaves,
    ayields_unsendable,
]


async def leaves_something_behind(name: str) -> str:
    """A task and a callback of the loop, which nobody waits for."""
    loop = asyncio.get_running_loop()
    loop.call_soon(sys.exit, name)
    task = loop.create_task(after_an_await(1))
    task.add_done_callback(lambda done: done.exception())
    await turn()
    return await asyncio.shield(asyncio.sleep(0, name))


async def who_async() -> str:
    await turn()
    return await rpc.to_thread(remote_code.who)


async def never_ends(name: str) -> None:
    """Leaves in its turn, when it is cancelled."""
    remote_code.gates(f"{name}-began").set()
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        leaves()
