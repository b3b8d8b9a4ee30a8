"""Asking an endpoint who listens there: the first half of a handshake, as the dialler does it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from telegrad.transport.base import Carrier
from telegrad.transport.handshake import (
    MAX_HANDSHAKE_BYTES,
    DialHandshake,
    Reason,
    RefusedError,
)
from telegrad.transport.terms import Terms
from telegrad.types import WorkerInfo

__all__ = ["Answer", "ask", "cut_off", "receive_small"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A listener that has said who it is, and has proved nothing yet."""

    carrier: Carrier
    handshake: DialHandshake
    peer: WorkerInfo
    endpoint: str


async def receive_small(carrier: Carrier) -> bytes:
    """Receives a message of a handshake.

    Raises:
        RefusedError: It is too big to be one.
    """
    message = await carrier.receive()
    if len(message) > MAX_HANDSHAKE_BYTES:
        raise RefusedError(Reason.MALFORMED, f"{len(message)} bytes before any proof")
    return message


async def ask(
    terms: Terms, endpoint: str, expected: WorkerInfo | None, *, lane_of: bytes = b""
) -> Answer:
    """Dials an endpoint and exchanges hellos.

    Args:
        terms: What all connections share.
        endpoint: Where somebody listens.
        expected: Who has to answer; None for whoever does.
        lane_of: For a lane: the id of its stream.

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
    carrier = await transport.dial(endpoint)
    handshake = DialHandshake(terms.identity, terms.token, expected=expected, lane_of=lane_of)
    cut = cut_off(terms, carrier)
    try:
        await carrier.send(handshake.hello())
        peer = handshake.takes_answer(await receive_small(carrier))
    except BaseException:
        terms.spawn(carrier.close())
        raise
    finally:
        cut.cancel()
    return Answer(carrier, handshake, peer, endpoint)


def cut_off(terms: Terms, carrier: Carrier) -> asyncio.TimerHandle:
    """Closes a carrier when its handshake takes too long; cancel the handle when it is done.

    The carrier is closed instead of the task cancelled: gRPC leaks what is cancelled in a read.
    """
    loop = asyncio.get_running_loop()
    return loop.call_later(terms.prove_within, lambda: terms.spawn(carrier.close()))
