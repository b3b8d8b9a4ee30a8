"""A transport that knows its carriers by their purpose, and lets a test kill or hold them."""

from __future__ import annotations

import asyncio
from typing import Any

from telegrad import pb
from telegrad.transport import (
    Carrier,
    CarrierClosedError,
    Transport,
    WrappedCarrier,
    shared_loop_thread,
)
from tests.transport.workers import Floor, Worker, WrappedTransport

HANDSHAKE_MESSAGES = 2  # a hello and a proof: what a dialler sends before all else


class Tap(WrappedTransport):
    """What one worker dials with; counts what it sends and receives, by purpose.

    Attributes:
        kill: By purpose, how many more messages pass before the carrier breaks, once.
        hold: By purpose, how many more messages leave before all of that purpose stand still; those
            of handshakes, which come at any time, leave all the same and are not counted.
        refuse: By purpose, how many more dials succeed before none does.
        carriers: All that were dialled, by purpose.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.kill: dict[str, int] = {}
        self.hold: dict[str, int] = {}
        self.refuse: dict[str, int] = {}
        self.carriers: dict[str, list[TappedCarrier]] = {"control": [], "bulk": []}

    def dialled(self, carrier: Carrier) -> Carrier:
        return TappedCarrier(carrier, self)

    def go_on(self, purpose: str, more: int | None = None) -> None:
        """Lets so many more messages leave of what is held, or all; from any thread."""

        async def move() -> None:
            if more is None:
                del self.hold[purpose]
            else:
                self.hold[purpose] += more
            for carrier in self.carriers[purpose]:
                carrier.moved.set()

        shared_loop_thread().run(move())


class TappedCarrier(WrappedCarrier):
    def __init__(self, inner: Carrier, tap: Tap) -> None:
        super().__init__(inner)
        self.tap = tap
        self.purpose = ""
        self.sent = 0
        self.sizes: list[int] = []  # of the messages that left
        self.closed = asyncio.Event()
        self.moved = asyncio.Event()  # what was held may go on, or never will

    async def send(self, message: bytes) -> None:
        if not self.purpose:
            self.purpose = pb.Hello.FromString(message[1:]).purpose
            self.tap.carriers[self.purpose].append(self)
            if (more := self.tap.refuse.get(self.purpose)) == 0:
                await self.close()
                raise CarrierClosedError("refused by the test")
            if more is not None:
                self.tap.refuse[self.purpose] = more - 1
        self.sent += 1
        while self.sent > HANDSHAKE_MESSAGES and self.purpose in self.tap.hold:
            if self.tap.hold[self.purpose]:
                self.tap.hold[self.purpose] -= 1
                break
            self.moved.clear()
            await self.moved.wait()
            if self.closed.is_set():
                raise CarrierClosedError("held by the test until it was closed")
        await self._count()
        self.sizes.append(len(message))
        await super().send(message)

    async def receive(self) -> bytes:
        message = await super().receive()
        await self._count()
        return message

    async def close(self) -> None:
        self.closed.set()
        self.moved.set()
        await super().close()

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


def tapped_pair(floor: Floor, **options: Any) -> tuple[Worker, Worker, Tap]:
    """Two workers of which the first dials, through the tap."""
    tap = Tap(floor.transport())
    alice = floor.worker("alice", transport=tap, **options)
    bob = floor.worker("bob", **options)
    alice.knows(bob)
    bob.exchange.connect(alice.info, ())  # may post, and waits to be dialled
    return alice, bob, tap
