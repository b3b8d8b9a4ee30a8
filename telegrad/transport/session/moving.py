"""Moving a stream from gRPC to a TCP socket, which any thread reads and writes itself.

The listener has a direct port and says so in its hello (`sockets/tcp`). The worker that dialled a
stream over gRPC dials that port as soon as the stream is up. The handshake there names the stream
whose place it takes; the session goes on from there, as after any break.

    gRPC   hello, hello, proof, welcome, frames ─────┐ let go
    TCP                    [TLS] hello, hello, proof, welcome, frames

Each end proves the token again, over both hellos, of which the dialler's names the first stream.
The socket is under TLS if the stream was, with the same certificates. A socket that cannot be had
leaves the stream where it is; a socket that breaks returns it to gRPC.
"""

from __future__ import annotations

import asyncio

from telegrad.errors import DecodeError
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.session.ask import (
    Answer,
    ask,
    handshaking,
    receive_small,
    refusals_recorded,
)
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.stream import Stream
from telegrad.transport.session.terms import Terms

__all__ = ["move"]

LOOK_SECONDS = 0.05  # between checks if the stream is still there, while a socket does not answer
# Big parts wait so long for a socket that answers. A firewall that drops what it does not let in
# must not delay them for longer; lanes over gRPC are let go if the stream moves after all.
HELD_SECONDS = 0.25


async def move(carriers: Carriers, terms: Terms, stream: Stream) -> None:
    """Moves a stream that this side dialled and both ends want to move, if that is possible.

    Args:
        carriers: The carriers of the connection.
        terms: The parts that all connections share.
        stream: The stream that is up; its lanes are held until the move is decided.
    """
    try:
        answer = await _asked(carriers, terms, stream)
        if answer is not None:
            await _take_its_place(carriers, terms, stream, answer)
    except (ConnectionError, DecodeError) as error:
        if carriers.stream is stream:
            carriers.direct.stays(stream.lanes.way.direct, str(error))
    finally:
        stream.lanes.release()


async def _asked(carriers: Carriers, terms: Terms, stream: Stream) -> Answer | None:
    """Returns the answer of the socket's listener; None once the stream is over.

    A stream that is over is dialled anew.
    """
    way = stream.lanes.way
    asking = asyncio.ensure_future(
        ask(terms, way.direct, carriers.peer, lane_of=way.stream_id, moves=True)
    )
    release = asyncio.get_running_loop().call_later(HELD_SECONDS, stream.lanes.release)
    try:
        while carriers.stream is stream and not asking.done():
            await asyncio.wait({asking}, timeout=LOOK_SECONDS)
        return asking.result() if asking.done() else None
    finally:
        release.cancel()
        asking.cancel()


async def _take_its_place(carriers: Carriers, terms: Terms, stream: Stream, answer: Answer) -> None:
    carrier, shake, way = answer.carrier, answer.handshake, stream.lanes.way
    with refusals_recorded(terms, answer.endpoint, answer.peer), handshaking(terms, carrier):
        if carriers.stream is not stream:
            raise CarrierClosedError("it is needed no more")
        let_go = carriers.set_aside()  # before the number of the last envelope held is told
        try:
            await carrier.send(shake.prove(carriers.detach(), resumes=True))
            peer_received = shake.takes_welcome(await receive_small(terms, carrier))
        except RefusedError as error:  # somebody in between may have shown another certificate
            carriers.direct.broke(given_up=error.reason is Reason.AUTHENTICATION, why=error.words)
            raise
        except BaseException:
            carriers.direct.broke()
            raise
        finally:
            let_go(b"")  # not before the peer knows the reason: it would dial
        if not carriers.wanted:
            raise CarrierClosedError("the peer was faster")
        lanes = carriers.lanes_of(way.moved(shake.stream_id()))
        carriers.adopt(Stream(carrier, shake.frames(), lanes), peer_received)
