"""The first half of a handshake, as the dialler does it: finds out which worker listens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from telegrad.transport.base import Carrier
from telegrad.transport.channels.lanes import Way
from telegrad.transport.security.audit import DIAL_REFUSED
from telegrad.transport.security.handshake import DialHandshake, Reason, RefusedError, Underlay
from telegrad.transport.session.terms import Terms
from telegrad.transport.sockets.tcp import TCP_SCHEME, direct_endpoint
from telegrad.types import WorkerInfo


@dataclass(frozen=True, slots=True)
class Answer:
    """A listener that has said which worker it is, and has not proved it yet."""

    carrier: Carrier
    handshake: DialHandshake
    peer: WorkerInfo
    endpoint: str


async def receive_small(terms: Terms, carrier: Carrier) -> bytes:
    """Receives a message of a handshake.

    Raises:
        RefusedError: The message is too big for a handshake.
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
        terms: The parts that all connections share.
        endpoint: The address of a listener.
        expected: The worker that has to answer; None for any worker.
        lane_of: For a lane: the id of its stream.
        moves: True if the carrier is no lane, but takes the place of that stream.

    Raises:
        ConnectionRefusedError: Nobody listens there.
        RefusedError: The listener, or this side, refuses.
        ConnectionError: The listener cannot be reached now.
    """
    scheme = endpoint.partition("://")[0]
    transport = terms.transports.get(scheme)
    if transport is None:
        known = ", ".join(sorted(terms.transports))
        raise ConnectionError(f"{endpoint} needs a transport {scheme!r}; this worker has {known}")
    with refusals_recorded(terms, endpoint, expected, lane=bool(lane_of) and not moves):
        carrier = await transport.dial(endpoint)  # which may refuse a certificate
        with handshaking(terms, carrier):
            await carrier.secure()
            handshake = DialHandshake(
                terms.credentials.identity,
                terms.credentials.token,
                expected=expected,
                lane_of=lane_of,
                moves=moves,
                underlay=Underlay.of(carrier, terms.credentials.certified),
            )
            await carrier.send(handshake.hello())
            peer = handshake.takes_answer(await receive_small(terms, carrier))
    return Answer(carrier, handshake, peer, endpoint)


@contextmanager
def refusals_recorded(
    terms: Terms, endpoint: str, peer: WorkerInfo | None, *, lane: bool = False
) -> Iterator[None]:
    """Records why a dial ends, if one of the two sides refuses."""
    try:
        yield
    except RefusedError as error:
        terms.audit.record(
            DIAL_REFUSED,
            peer=None if peer is None else peer.name,
            incarnation=None if peer is None else peer.incarnation,
            endpoint=endpoint,
            lane=lane,
            reason=error.reason.name,
            words=error.words,
        )
        raise


@contextmanager
def proving(terms: Terms, answer: Answer, *, lane: bool = False) -> Iterator[None]:
    """Stands around the second half of a handshake: records a refusal, and closes the carrier."""
    with (
        refusals_recorded(terms, answer.endpoint, answer.peer, lane=lane),
        handshaking(terms, answer.carrier),
    ):
        yield


@contextmanager
def handshaking(terms: Terms, carrier: Carrier) -> Iterator[None]:
    """Closes a carrier if its handshake fails, or takes too long."""
    cut = cut_off(terms, carrier)
    try:
        yield
    except BaseException:
        terms.spawn(carrier.close())
        raise
    finally:
        cut.cancel()


def cut_off(terms: Terms, carrier: Carrier) -> asyncio.TimerHandle:
    """Closes a carrier when its handshake takes too long; cancel the handle when it is done.

    The carrier is closed, and the task is not cancelled, because gRPC leaks a read that is
    cancelled.
    """
    loop = asyncio.get_running_loop()
    return loop.call_later(terms.limits.handshake_seconds, lambda: terms.spawn(carrier.close()))


# -- lanes: proved as their stream is, at the same endpoint ---------------------------------------


def way_of(terms: Terms, answer: Answer) -> Way:
    """Returns the facts that lanes need about a stream that this side has dialled."""
    shake, endpoint, encrypted = answer.handshake, answer.endpoint, bool(answer.carrier.binding)
    if TCP_SCHEME not in terms.transports:
        return Way(shake.stream_id(), endpoint)
    direct = direct_endpoint(endpoint, shake.capabilities, encrypted=encrypted)
    return Way(shake.stream_id(), endpoint, direct)


async def dial_lane(terms: Terms, peer: WorkerInfo, way: Way) -> Carrier:
    """Dials a lane and proves that it belongs to a stream; see `lanes.DialLane`."""
    answer = await ask(terms, way.endpoint, peer, lane_of=way.stream_id)
    carrier, shake = answer.carrier, answer.handshake
    with proving(terms, answer, lane=True):
        await carrier.send(shake.prove(0, resumes=False))
        shake.takes_welcome(await receive_small(terms, carrier))
    return carrier
