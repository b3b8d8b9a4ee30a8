"""A dialler made by hand, which proves what workers prove, and may then say anything."""

from __future__ import annotations

import pytest

from telegrad.transport import Carrier, CarrierClosedError, TcpTransport, Tls
from telegrad.transport.security.handshake import (
    DialHandshake,
    Identity,
    Reason,
    RefusedError,
    Underlay,
)
from telegrad.types import WorkerInfo
from telegrad.wire import PIECE_BYTES
from tests.loops import on_loop
from tests.transport.workers import (
    LOCALHOST,
    TOKEN,
    Floor,
    Worker,
    pattern,
    port_of,
    wait_until_moved,
)

MALLORY = WorkerInfo("mallory", 9, 99)
DATA = pattern(PIECE_BYTES + 1000)


class Peer:
    """A dialler with a control stream and lanes; where its floor has sockets, these are sockets.

    Args:
        floor: The floor of the host.
        host: The worker to dial.
        info: The worker that it claims to be.
        tls: The certificate that it shows at a direct port; None for none.
    """

    def __init__(
        self, floor: Floor, host: Worker, info: WorkerInfo = MALLORY, tls: Tls | None = None
    ) -> None:
        self._floor, self._host, self._info = floor, host, info
        self._dialler = TcpTransport((), lambda: None, tls=tls)
        self._carriers: list[Carrier] = []

    async def dial(self) -> Carrier:
        """Returns a carrier of the transport over which streams begin; nothing is proved on it."""
        self._carriers.append(await self._floor.transport().dial(self._host.endpoints[0]))
        return self._carriers[-1]

    async def socket(self) -> Carrier:
        """Returns a connection to the direct port, on which nothing is proved."""
        scheme = "tcp" if self._floor.kind == "tcp" else "tcps"
        carrier = await self._dialler.dial(f"{scheme}://{LOCALHOST}:{port_of(self._host)}")
        self._carriers.append(carrier)
        await carrier.secure()
        return carrier

    async def prove(
        self,
        carrier: Carrier,
        *,
        token: bytes | None = TOKEN,
        lane_of: bytes = b"",
        moves: bool = False,
    ) -> DialHandshake:
        """Does the handshake of workers."""
        identity, underlay = Identity("job", self._info), Underlay.of(carrier)
        shake = DialHandshake(identity, token, lane_of=lane_of, moves=moves, underlay=underlay)
        await carrier.send(shake.hello())
        shake.takes_answer(await carrier.receive())
        await carrier.send(shake.prove(0, resumes=moves))
        shake.takes_welcome(await carrier.receive())
        return shake

    async def begin(self, lane_of: bytes = b"") -> tuple[Carrier, DialHandshake]:
        """Returns a stream, or a lane, over the transport over which streams begin."""
        carrier = await self.dial()
        return carrier, await self.prove(carrier, lane_of=lane_of)

    async def stream(self) -> tuple[Carrier, DialHandshake]:
        """Returns a stream, which has moved to a socket where there is one."""
        carrier, shake = await self.begin()
        if not self._host.sockets:
            return carrier, shake
        carrier = await self.socket()
        return carrier, await self.prove(carrier, lane_of=shake.stream_id(), moves=True)

    async def lane(self, stream: bytes) -> Carrier:
        """Returns a lane of a stream."""
        carrier = await (self.socket() if self._host.sockets else self.dial())
        await self.prove(carrier, lane_of=stream)
        return carrier

    async def reason(
        self, stream: bytes, *, token: bytes | None = TOKEN, moves: bool = False
    ) -> Reason:
        """Returns why a lane of a stream, or a socket in its place, is not taken."""
        carrier = await (self.socket() if self._host.sockets else self.dial())
        with pytest.raises(RefusedError) as error:
            await self.prove(carrier, token=token, lane_of=stream, moves=moves)
        return error.value.reason

    async def close(self) -> None:
        """Closes all of them."""
        for carrier in self._carriers:
            await carrier.close()


async def until_closed(carrier: Carrier) -> list[bytes]:
    """Reads all that comes until the other end closes."""
    messages = []
    try:
        while True:
            messages.append(await carrier.receive())
    except CarrierClosedError:
        await carrier.close()
        return messages


def answers_to(floor: Floor, host: Worker, *messages: bytes) -> list[bytes]:
    """Sends messages to a host, as one who has proved nothing; returns all that comes until the end."""

    async def talk() -> list[bytes]:
        carrier = await floor.transport().dial(host.endpoints[0])
        for message in messages:
            await carrier.send(message)
        return await until_closed(carrier)

    return on_loop(talk)


def serves_on(floor: Floor, host: Worker, *before: int) -> None:
    """Checks that a friend comes in, also with something big, and moves where there are sockets.

    Args:
        floor: The floor of the host.
        host: The worker that something was sent to.
        *before: All calls that it may have got by now.
    """
    friend = floor.worker("carol").knows(host)  # a name in the certificate of mutual TLS
    host.exchange.connect(friend.info, ())
    friend.post(host, 77)
    if host.sockets:
        wait_until_moved(friend, host)
    friend.post(host, 78, buffers=[DATA])
    assert host.recorder.wait_envelopes(len(before) + 2)[-1].buffers[0] == DATA
    assert host.recorder.calls() == [*before, 77, 78]
