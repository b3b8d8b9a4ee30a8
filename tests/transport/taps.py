"""A transport that knows its carriers by their purpose, and lets a test kill or hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from telegrad import pb
from telegrad.transport import Carrier, CarrierClosedError, Listener, Transport

HANDSHAKE_MESSAGES = 2  # a hello and a proof: what a dialler sends before all else


class Tap(Transport):
    """What one worker dials with; counts what it sends and receives, by purpose.

    Attributes:
        kill: By purpose, how many more messages pass before the carrier breaks, once.
        hold: By purpose, how many more messages leave before all of that purpose stand still; those
            of handshakes, which come at any time, leave all the same and are not counted.
        refuse: Purposes of which no dial succeeds.
        carriers: All that were dialled, by purpose.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.kill: dict[str, int] = {}
        self.hold: dict[str, int] = {}
        self.refuse: set[str] = set()
        self.carriers: dict[str, list[TappedCarrier]] = {"control": [], "bulk": []}

    @property
    def scheme(self) -> str:
        return self.inner.scheme

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        return await self.inner.listen(accept)

    async def dial(self, endpoint: str) -> Carrier:
        return TappedCarrier(await self.inner.dial(endpoint), self)


class TappedCarrier(Carrier):
    def __init__(self, inner: Carrier, tap: Tap) -> None:
        self.inner = inner
        self.tap = tap
        self.purpose = ""
        self.sent = 0
        self.closed = asyncio.Event()

    @property
    def description(self) -> str:
        return self.inner.description

    async def send(self, message: bytes) -> None:
        if not self.purpose:
            self.purpose = pb.Hello.FromString(message[1:]).purpose
            self.tap.carriers[self.purpose].append(self)
            if self.purpose in self.tap.refuse:
                await self.close()
                raise CarrierClosedError("refused by the test")
        self.sent += 1
        left = self.tap.hold.get(self.purpose)
        if left is not None and self.sent > HANDSHAKE_MESSAGES:
            if left == 0:
                await self.closed.wait()
                raise CarrierClosedError("held by the test until it was closed")
            self.tap.hold[self.purpose] = left - 1
        await self._count()
        await self.inner.send(message)

    async def receive(self) -> bytes:
        message = await self.inner.receive()
        await self._count()
        return message

    async def close(self) -> None:
        self.closed.set()
        await self.inner.close()

    async def _count(self) -> None:
        left = self.tap.kill.get(self.purpose)
        if left is None:
            return
        if left > 0:
            self.tap.kill[self.purpose] = left - 1
            return
        del self.tap.kill[self.purpose]
        await self.close()
        raise CarrierClosedError("killed by the test")
