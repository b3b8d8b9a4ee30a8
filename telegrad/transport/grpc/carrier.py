"""The part that both ends of a gRPC stream have in common: reads and writes that can be given up.

gRPC ends an operation when its call is cancelled, with two exceptions. At the listener a write
waits for the dialler to read, whatever happens. And bytes that are stuck in a socket, behind a peer
that was stopped, delay even a cancelled call. A close must not wait for either. Nor must gRPC: with
its last object goes its polling thread, and the loop would wait for the end of that thread, which
waits for the end of the operation.

Nothing but such an operation keeps that thread and its descriptors: a closed carrier holds none of
gRPC's objects, nor does an error that it raised, for both may wait for the collector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import cache
from typing import Any, Protocol, TypeVar

import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from telegrad.transport.base import Carrier
from telegrad.transport.grpc.errors import STREAM_ERRORS, closed

T = TypeVar("T")


@cache
def keep_core() -> None:
    """Keeps gRPC's core, with one thread and two descriptors, for the life of the process.

    Else the core would go with the last object of gRPC, and with it what a thread of gRPC may use
    for 10 s longer, after a write that filled its socket: that crashes the process (1.85).
    """
    cygrpc.fork_handlers_and_grpc_init()  # each object does this, too, and undoes it at its end


def keep_polling() -> None:
    """Keeps gRPC's polling thread for the life of the process: an operation may never end."""
    grpc.aio.init_grpc_aio()


class Messages(Protocol):
    """The messages of one stream, as gRPC's call and its servicer context both move them."""

    def read(self) -> Awaitable[Any]:
        """Reads a message; something else at the end."""

    def write(self, message: bytes, /) -> Awaitable[None]:
        """Writes a message."""


class GrpcCarrier(Carrier):
    """One end of a gRPC stream; on the loop.

    Args:
        description: The address of the other end.
        stream: Moves the messages.
    """

    polled = True

    def __init__(self, description: str, stream: Messages) -> None:
        self.description = description
        self._messages: Messages | None = stream  # None once this end is closed
        self._closed = asyncio.Event()
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()  # held by an operation
        self._under_way: dict[asyncio.Task[Any], bool] = {}  # True once its operation is given up

    async def send(self, message: bytes) -> None:
        """Sends one message; see `Carrier.send`."""
        async with self._writing:
            await self._run(self._open_messages().write(message))

    async def receive(self) -> bytes:
        """Returns the next message; see `Carrier.receive`."""
        async with self._reading:
            message = await self._run(self._open_messages().read())
        if not isinstance(message, bytes) or self._closed.is_set():  # the end
            raise closed(self.description)
        return message

    async def _run(self, operation: Awaitable[T]) -> T:
        """Awaits one operation of this task.

        Raises:
            CarrierClosedError: The stream is over.
        """
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task], cancelled_before = False, task.cancelling()
        try:
            return await operation
        except STREAM_ERRORS as error:
            broken = closed(self.description, error)
        except asyncio.CancelledError:
            # A read that is under way when its channel closes ends like this, too: by gRPC.
            if task.cancelling() > cancelled_before:
                keep_polling()
            if self._under_way[task]:
                task.uncancel()
            if task.cancelling():
                raise
            broken = closed(self.description)
        finally:
            del self._under_way[task]
        try:
            raise broken  # here: gRPC's error would be its context, and keep the call
        finally:
            del broken

    def _open_messages(self) -> Messages:
        if self._messages is None:
            raise closed(self.description)
        return self._messages

    def _end_messages(self) -> bool:
        """Lets no operation begin from now on; returns False if that is so already."""
        if self._closed.is_set():
            return False
        self._closed.set()
        self._messages = None
        return True

    def _abandon(self) -> None:
        """Gives up the operations under way: they raise CarrierClosedError."""
        for task, given_up in self._under_way.items():
            if not given_up:
                self._under_way[task] = True
                task.cancel()
