"""The listening end of handshakes: who may come in, and which of two crossed dials stays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from telegrad.errors import DecodeError
from telegrad.transport.answer import cut_off, receive_small
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.connection import Connection
from telegrad.transport.handshake import AcceptHandshake, Reason, RefusedError, refusal
from telegrad.transport.stream import Stream
from telegrad.transport.terms import Terms
from telegrad.types import WorkerInfo

__all__ = ["Door"]

logger = logging.getLogger(__name__)


@final
class Door:
    """Takes the carriers of one worker's listeners; on the loop.

    Args:
        terms: What all connections share.
        admit: Says why a peer may not come in, or None when it may.
        on_refused: Hears of a dialler that did not prove itself: who it claimed to be, and why.
        find: Returns the connection to a worker; makes one when told to, unless all is closed or
            the one there was is forgotten.
        forgotten: Whether a worker has ended so long ago that its connection is.
        dialling: Whether a handshake that this side began with that peer is under way.
    """

    def __init__(
        self,
        terms: Terms,
        *,
        admit: Callable[[WorkerInfo], str | None],
        on_refused: Callable[[WorkerInfo, str], None],
        find: Callable[[WorkerInfo, bool], Connection | None],
        forgotten: Callable[[WorkerInfo], bool],
        dialling: Callable[[Connection], bool],
    ) -> None:
        self._terms = terms
        self._info = terms.identity.info
        self._admit = admit
        self._on_refused = on_refused
        self._find = find
        self._forgotten = forgotten
        self._dialling = dialling

    async def take(self, carrier: Carrier) -> None:
        """Begins a handshake with whoever dialled."""
        self._terms.spawn(self._shake_hands(carrier))

    async def _shake_hands(self, carrier: Carrier) -> None:
        """The listener's half of a handshake; refuses with words whoever does not belong here."""
        cut = cut_off(self._terms, carrier)
        try:
            await self._welcome(carrier)
        except RefusedError as error:
            logger.info("refused %s: %s", carrier.description, error)
            await self._refuse(carrier, error)
        except (CarrierClosedError, DecodeError) as error:
            logger.info("%s did not finish its handshake: %s", carrier.description, error)
            await carrier.close()
        finally:
            cut.cancel()

    async def _refuse(self, carrier: Carrier, error: RefusedError) -> None:
        try:
            await carrier.send(refusal(error))
        except CarrierClosedError:
            pass
        finally:
            await carrier.close()

    async def _welcome(self, carrier: Carrier) -> None:
        handshake = AcceptHandshake(self._terms.identity, self._terms.token)
        claimed = handshake.takes_hello(await receive_small(carrier))
        known = self._find(claimed, False)
        carriers = 0 if known is None else known.carriers
        await carrier.send(handshake.answer())
        try:
            peer_received, _ = handshake.takes_proof(await receive_small(carrier))
        except RefusedError as error:
            self._on_refused(claimed, error.words)
            raise
        if handshake.lane_of:
            self._take_lane(carrier, claimed, handshake)
            return
        connection = self._admitted(claimed)
        self._check_crossed(connection, carriers)
        resumes = connection.carriers > 0
        connection.detach()  # before the number of the last envelope held is told
        preamble = handshake.welcome(connection.received_number, resumes=resumes)
        lanes = connection.lanes_of(handshake.stream_id(), "")
        stream = Stream(carrier, handshake.frames(), lanes, preamble=preamble)
        connection.adopt(stream, peer_received)

    def _take_lane(self, carrier: Carrier, peer: WorkerInfo, handshake: AcceptHandshake) -> None:
        """Gives a lane to the stream that it names, which must be the one with that peer."""
        connection = self._find(peer, False)
        stream = None if connection is None else connection.stream
        if stream is None or not stream.lanes.accepts(handshake.lane_of):
            raise RefusedError(
                Reason.UNKNOWN_STREAM,
                f"{self._info.name} has no stream from {peer.name} that takes this lane",
            )
        stream.lanes.take(carrier, preamble=handshake.welcome(0, resumes=False))

    def _admitted(self, peer: WorkerInfo) -> Connection:
        if (why := self._admit(peer)) is not None:
            raise RefusedError(Reason.NOT_ADMITTED, why)
        connection = self._find(peer, True)
        if connection is None and self._forgotten(peer):
            gone = f"fenced: {self._info.name} has no session with this incarnation any more"
            raise RefusedError(Reason.FENCED, gone)
        if connection is None:
            raise RefusedError(Reason.INCARNATION, f"{self._info.name} has shut down")
        loss = connection.loss
        if loss is not None:
            given_up = f"fenced: {self._info.name} has given up this incarnation ({loss.reason})"
            raise RefusedError(Reason.FENCED, given_up)
        if connection.ended.is_set():
            raise RefusedError(Reason.INCARNATION, f"{self._info.name} has left")
        return connection

    def _check_crossed(self, connection: Connection, carriers: int) -> None:
        """Refuses a stream that crossed one of this side's, when this side has the smaller name.

        That is so while this side's handshake is under way; and when its stream came up after
        the other's hello, for then the peer accepted it knowing of its own dial.
        """
        if self._info.name > connection.peer.name:
            return
        stream = connection.stream
        crossed = stream is not None and stream.dialled and connection.carriers > carriers
        if crossed or self._dialling(connection):
            raise RefusedError(Reason.DUPLICATE, f"{self._info.name} dials, too, and goes first")
