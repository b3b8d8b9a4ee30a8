"""Moving a stream from gRPC to a TCP socket, which any thread reads and writes itself.

The move needs sockets for lanes (`channels/socket_lane`) at both workers, and both have to say that
frames may go by them, too. Then the worker that dialled a stream over gRPC dials that port as soon
as the stream is up. The handshake there names the stream whose place it takes; the session goes on
from there, as after any break.

    gRPC   hello, hello, proof, welcome, frames ─────┐ let go
    TCP                          hello, hello, proof, welcome, frames

Each end proves the token again, over both hellos, of which the dialler's names the first stream.
Frames are as safe as there: encrypted with keys of their own where that had TLS (`security/seal`),
else with tags. A socket that cannot be had leaves the stream where it is; a socket that breaks
returns it to gRPC.
"""

from __future__ import annotations

import asyncio
import logging

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.channels.lanes import Way
from telegrad.transport.security.handshake import AcceptHandshake, DialHandshake
from telegrad.transport.security.seal import SealedFrames, make_seal, moved_secret
from telegrad.transport.session.ask import (
    Answer,
    ask,
    check_path,
    cut_off,
    receive_small,
    record_refusal,
)
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.stream import Stream
from telegrad.transport.session.terms import Terms

__all__ = ["move", "moved_stream"]

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05  # between checks if the stream is still there, while a socket does not answer


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
            name, where = carriers.peer.name, stream.lanes.way.bulk_endpoint
            words = f"calls go to {name} over gRPC, not {where}: {error}"
            terms.bulk.run(logger.warning, words)  # a log handler may block
    finally:
        stream.lanes.release()


async def _asked(carriers: Carriers, terms: Terms, stream: Stream) -> Answer | None:
    """Returns the answer of the socket's listener; None once the stream is over.

    A stream that is over is dialled anew.
    """
    way = stream.lanes.way
    asking = asyncio.ensure_future(
        ask(terms, way.bulk_endpoint, carriers.peer, lane_of=way.stream_id, moves=True)
    )
    try:
        while carriers.stream is stream and not asking.done():
            await asyncio.wait({asking}, timeout=LOOK_SECONDS)
        return asking.result() if asking.done() else None
    finally:
        asking.cancel()


async def _take_its_place(carriers: Carriers, terms: Terms, stream: Stream, answer: Answer) -> None:
    carrier, shake, way = answer.carrier, answer.handshake, stream.lanes.way
    cut = cut_off(terms, carrier)
    try:
        check_path(way, terms, carrier)
        if carriers.stream is not stream:
            raise CarrierClosedError("it is needed no more")
        let_go = carriers.set_aside()  # before the number of the last envelope held is told
        try:
            await carrier.send(shake.prove(carriers.detach(), resumes=True))
            peer_received = shake.takes_welcome(await receive_small(terms, carrier))
        except BaseException:
            carriers.socket_broke()
            raise
        finally:
            let_go(b"")  # not before the peer knows the reason: it would dial
        if not carriers.wanted:
            raise CarrierClosedError("the peer was faster")
        carriers.adopt(moved_stream(carriers, way, carrier, shake), peer_received)
    except BaseException as error:
        terms.spawn(carrier.close())
        record_refusal(terms, error, answer.endpoint, answer.peer)
        raise
    finally:
        cut.cancel()


def moved_stream(
    carriers: Carriers,
    way: Way,
    carrier: Carrier,
    shake: DialHandshake | AcceptHandshake,
    *,
    preamble: bytes = b"",
) -> Stream:
    """Returns the stream of a socket whose handshake is done.

    Args:
        carriers: The carriers of the connection.
        way: The two ends of the lanes of the stream whose place it takes.
        carrier: The socket.
        shake: The handshake.
        preamble: The bytes to send before the first frame: a listener's welcome.

    Raises:
        CarrierClosedError: The socket broke meanwhile, or its frames cannot be protected.
    """
    below = carrier.blocking
    if below is None:
        raise CarrierClosedError("streams move to sockets alone")
    seal = make_seal(way.secret, shake.transcript, dialled=bool(way.endpoint))
    frames = shake.frames() if seal is None else SealedFrames(seal)
    secret = moved_secret(way.secret, shake.transcript)
    lanes = carriers.lanes_of(way.moved(shake.stream_id(), secret))
    below.begin_direct()
    return Stream(carrier, frames, lanes, preamble=preamble)
