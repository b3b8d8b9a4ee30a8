"""One listening port for all exchanges of a process, which leads each dialler to its exchange.

A dialler's first message names the worker that it wants to reach, by name and incarnation: the
agent, its line to the coordinator, or the coordinator where that runs here, too. A dialler that
names nobody is led to the exchange that has listened for longest. So is a dialler that names a
worker that is not here: it will be refused there, in words.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, final

from google.protobuf.message import DecodeError as ProtobufDecodeError

from telegrad import pb
from telegrad.transport.base import (
    Carrier,
    CarrierClosedError,
    Listener,
    Transport,
    WrappedCarrier,
)
from telegrad.transport.limits import HANDSHAKE_BYTES
from telegrad.types import WorkerInfo

Accept: TypeAlias = Callable[[Carrier], Awaitable[None]]
NOBODY: Final = WorkerInfo("", 0, 0)  # named by no dialler


class LedOnError(CarrierClosedError):
    """The stream is another exchange's from now on; never reaches users."""


@final
class SharedPort(Transport):
    """A transport that listens once, for several exchanges.

    Args:
        dialler: The transport that dials; it listens, too, unless `place` names others.
        beside: Transports that dial endpoints of other schemes.
    """

    def __init__(self, dialler: Transport, *beside: Transport) -> None:
        self._diallers = {s: each for each in (dialler, *beside) for s in each.schemes}
        self.scheme, self.schemes = dialler.scheme, frozenset(self._diallers)
        self._candidates: Sequence[Transport] = (dialler,)
        self._tried = ""
        self._opening = asyncio.Lock()  # guards the next two, on the loop
        self._listener: Listener | None = None
        self._doors: dict[_Door, None] = {}

    def place(self, candidates: Sequence[Transport], tried: str = "") -> None:
        """Sets the transports of which the first with a free port listens; called before that."""
        self._candidates = tuple(candidates)
        self.scheme = self._candidates[0].scheme
        self._tried = tried

    def reaches(self, endpoint: str) -> bool:
        """Returns the answer of the transport that dials the endpoint; see `Transport.reaches`."""
        return self._dialler(endpoint).reaches(endpoint)

    async def listen(self, accept: Accept) -> Listener:
        """Listens for diallers that name no worker that listens here; see `Transport.listen`."""
        return await self.listen_as(NOBODY, accept)

    async def dial(self, endpoint: str) -> Carrier:
        """Connects to an endpoint; see `Transport.dial`."""
        return await self._dialler(endpoint).dial(endpoint)

    async def listen_as(self, info: WorkerInfo, accept: Accept) -> Listener:
        """Opens the port, if it is not open yet, and adds a worker's door to it.

        Raises:
            OSError: No port can be had; the message says which were tried.
        """
        async with self._opening:
            # Under the lock: the last door may be about to close the port.
            if self._listener is None:
                self._listener = await self._open_first()
            door = _Door(self, self._listener.endpoint, info, accept)
            self._doors[door] = None
        return door

    async def close(self, door: _Door) -> None:
        """Removes a door; the last one closes the port."""
        async with self._opening:
            self._doors.pop(door, None)
            if not self._doors and self._listener is not None:
                listener, self._listener = self._listener, None
                await listener.close()

    def door_for(self, hello: bytes) -> _Door | None:
        """Returns the door for a first message; None where it names no worker that listens here."""
        if hello[:1] != b"H" or len(hello) > HANDSHAKE_BYTES:
            return None
        told = pb.Hello()
        try:
            told.ParseFromString(hello[1:])
        except (ProtobufDecodeError, UnicodeDecodeError):
            return None
        doors = [door for door in self._doors if door.info.name == told.expected_name]
        exact = [door for door in doors if door.info.incarnation == told.expected_incarnation]
        return next(iter(exact or doors), None)

    def _dialler(self, endpoint: str) -> Transport:
        return self._diallers[endpoint.partition("://")[0]]

    async def _open_first(self) -> Listener:
        for transport in self._candidates:
            try:
                return await transport.listen(self._take)
            except OSError as error:
                # This is gRPC's own error, without a number, for a port that was free just before.
                if len(self._candidates) == 1 or error.errno not in (errno.EADDRINUSE, None):
                    raise
        raise OSError(
            errno.EADDRINUSE,
            f"cannot listen: {self._tried} are in use, every one; name more ports, or port=0 to "
            "let the kernel choose",
        )

    async def _take(self, carrier: Carrier) -> None:
        door = next(iter(self._doors), None)
        if door is None:
            await carrier.close()
        else:
            await door.accept(_LedCarrier(self, door, carrier))


@final
class _Door(Listener):
    def __init__(self, port: SharedPort, endpoint: str, info: WorkerInfo, accept: Accept) -> None:
        self._port = port
        self.endpoint = endpoint
        self.info = info
        self.accept = accept

    async def close(self) -> None:
        await self._port.close(self)


@final
class _LedCarrier(WrappedCarrier):
    """A stream whose first message decides to which exchange it belongs.

    The exchange that asks for that message counts and times it, as it does every stream that has
    not proved itself. If the stream is another exchange's, that one gets it with the message, and
    LedOnError tells the first one so.
    """

    def __init__(self, port: SharedPort, door: _Door, inner: Carrier) -> None:
        super().__init__(inner)
        self._port = port
        self._door = door
        self._came = False
        self._first: bytes | None = None  # for the exchange to which the stream was led

    async def receive(self) -> bytes:
        first, self._first = self._first, None
        if first is not None:
            return first
        message = await self._inner.receive()
        if self._came:
            return message
        self._came = True
        door = self._port.door_for(message)
        if door is None or door is self._door:
            return message
        self._first = message
        await door.accept(self)
        raise LedOnError(f"the stream with {self.description} is for {door.info.name}")
