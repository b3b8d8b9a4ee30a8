"""Asking an endpoint who listens there: the first half of a handshake, as the dialler does it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from telegrad.transport.base import Carrier, Transport
from telegrad.transport.security.audit import DIAL_REFUSED
from telegrad.transport.security.handshake import DialHandshake, Reason, RefusedError, Underlay
from telegrad.transport.session.terms import Terms
from telegrad.types import WorkerInfo

__all__ = ["Answer", "ask", "cut_off", "receive_small", "record_refusal"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A listener that has said who it is, and has proved nothing yet."""

    carrier: Carrier
    handshake: DialHandshake
    peer: WorkerInfo
    endpoint: str


async def receive_small(terms: Terms, carrier: Carrier) -> bytes:
    """Receives a message of a handshake.

    Raises:
        RefusedError: It is too big to be one.
    """
    message = await carrier.receive()
    if len(message) > terms.limits.handshake_bytes:
        raise RefusedError(Reason.MALFORMED, f"{len(message)} bytes before any proof")
    return message


async def ask(
    terms: Terms,
    endpoint: str,
    expected: WorkerInfo | None,
    *,
    lane_of: bytes = b"",
    moves: bool = False,
) -> Answer:
    """Dials an endpoint and exchanges hellos.

    Args:
        terms: What all connections share.
        endpoint: Where somebody listens.
        expected: Who has to answer; None for whoever does.
        lane_of: For a lane: the id of its stream.
        moves: Whether it is no lane, but takes the place of that stream.

    Raises:
        ConnectionRefusedError: Nobody listens there.
        RefusedError: The listener, or this side, refuses.
        ConnectionError: It cannot be reached now.
    """
    scheme = endpoint.partition("://")[0]
    transport = terms.transports.get(scheme)
    if transport is None:
        known = ", ".join(sorted(terms.transports))
        raise ConnectionError(f"{endpoint} needs a transport {scheme!r}; this worker has {known}")
    carrier = await _dialled(terms, transport, endpoint, expected, lane=bool(lane_of) and not moves)
    handshake = DialHandshake(
        terms.credentials.identity,
        terms.credentials.token,
        expected=expected,
        lane_of=lane_of,
        moves=moves,
        underlay=Underlay.of(carrier, terms.credentials.certified),
    )
    cut = cut_off(terms, carrier)
    try:
        await carrier.send(handshake.hello())
        peer = handshake.takes_answer(await receive_small(terms, carrier))
    except BaseException as error:
        terms.spawn(carrier.close())
        record_refusal(terms, error, endpoint, expected, lane=bool(lane_of) and not moves)
        raise
    finally:
        cut.cancel()
    return Answer(carrier, handshake, peer, endpoint)


async def _dialled(
    terms: Terms, transport: Transport, endpoint: str, peer: WorkerInfo | None, *, lane: bool
) -> Carrier:
    try:
        return await transport.dial(endpoint)
    except RefusedError as error:  # for its certificate, or ours
        record_refusal(terms, error, endpoint, peer, lane=lane)
        raise


def record_refusal(
    terms: Terms,
    error: BaseException,
    endpoint: str,
    peer: WorkerInfo | None,
    *,
    lane: bool = False,
) -> None:
    """Records why a dial ended, if that was a refusal, by either side."""
    if not isinstance(error, RefusedError):
        return
    terms.audit.record(
        DIAL_REFUSED,
        peer=None if peer is None else peer.name,
        incarnation=None if peer is None else peer.incarnation,
        endpoint=endpoint,
        lane=lane,
        reason=error.reason.name,
        words=error.words,
    )


def cut_off(terms: Terms, carrier: Carrier) -> asyncio.TimerHandle:
    """Closes a carrier when its handshake takes too long; cancel the handle when it is done.

    The carrier is closed instead of the task cancelled: gRPC leaks what is cancelled in a read.
    """
    loop = asyncio.get_running_loop()
    return loop.call_later(terms.credentials.seconds, lambda: terms.spawn(carrier.close()))
