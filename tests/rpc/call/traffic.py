"""What two workers run to count the messages of calls of each kind, and their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from telegrad import rpc
from telegrad.transport.session.connection import Connection
from tests.rpc.turns import turn

Noted: TypeAlias = tuple[str, int, int]
POSTED: list[Noted] = []  # of one worker: kind, bytes without buffers, of buffers
KINDS = ("rpc", "rref", "stream", "autograd", "collectives")


def watch() -> None:
    """Notes from now on what this worker posts."""
    post = Connection.post

    def noted(connection: Connection, envelope: Any, **how: Any) -> None:
        if envelope.kind.partition(".")[0] in KINDS:
            size = len(envelope.document) + len(envelope.externals)
            size += sum(len(key) + len(value) for key, value in envelope.headers.items())
            buffers = sum(memoryview(each).nbytes for each in envelope.buffers)
            POSTED.append((envelope.kind + " reply" * envelope.reply, size, buffers))
        post(connection, envelope, **how)

    Connection.post = noted  # type: ignore[assignment,method-assign]


def posted() -> list[Noted]:
    """Returns what was noted, and forgets it."""
    noted = POSTED.copy()
    POSTED.clear()
    return noted


def traffic(body: str) -> tuple[list[Noted], list[Noted]]:
    """Returns what each of the two posts while worker 0 runs a body; it ran once before."""
    BODIES[body]()
    rpc.rpc_sync("worker1", posted)
    posted()
    BODIES[body]()
    mine = posted()
    return mine, rpc.rpc_sync("worker1", posted)[1:]  # the first is the reply of the one before


def nothing() -> None:
    pass


def echo(value: Any) -> Any:
    return value


async def soon(value: Any) -> Any:
    await turn()
    return value


@rpc.functions.async_execution
def promised(value: Any) -> Any:
    future: rpc.Future[Any] = rpc.Future()
    future.set_result(value)
    return future


def fails() -> None:
    raise ValueError("no")


def three() -> Iterator[int]:
    yield from range(3)


async def awaited() -> None:
    await rpc.rpc_async("worker1", nothing)


def failing() -> None:
    with suppress(ValueError):
        rpc.rpc_sync("worker1", fails)


def many() -> None:
    rpc.wait_all([rpc.rpc_async("worker1", nothing) for _ in range(10)])


def streaming() -> None:
    assert list(rpc.stream("worker1", three)) == [0, 1, 2]


BODIES: dict[str, Callable[[], Any]] = {
    "empty": lambda: rpc.rpc_sync("worker1", nothing),
    "awaited": lambda: asyncio.run(awaited()),
    "ten at once": many,
    "numbers": lambda: rpc.rpc_sync("worker1", echo, ((1, 2.0, "three"),)),
    "small array": lambda: rpc.rpc_sync("worker1", echo, (np.arange(8.0),)),
    "big array": lambda: rpc.rpc_sync("worker1", echo, (np.zeros(2**20, np.uint8),)),
    "big document": lambda: rpc.rpc_sync("worker1", echo, (["x" * 1000] * 100,)),
    "coroutine": lambda: rpc.rpc_sync("worker1", soon, (1,)),
    "async_execution": lambda: rpc.rpc_sync("worker1", promised, (1,)),
    "stream": streaming,
    "failure": failing,
}
