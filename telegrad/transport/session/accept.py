"""The listening end of handshakes: decides on admission, and which of two crossed dials stays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.channels.lanes import Way
from telegrad.transport.security.audit import CONNECTION_ADMITTED, CONNECTION_REFUSED
from telegrad.transport.security.guest_list import GuestList
from telegrad.transport.security.handshake import (
    AcceptHandshake,
    Reason,
    RefusedError,
    Underlay,
    refusal,
)
from telegrad.transport.session.ask import cut_off, receive_small
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.peers import Peers
from telegrad.transport.session.shared_port import LedOnError
from telegrad.transport.session.stream import Stream
from telegrad.transport.session.terms import Terms
from telegrad.types import WorkerInfo

# -- streams that have not proved themselves yet: there is always room for one more ---------------
#
# A stranger that opens streams and sends nothing holds each of them for the time limit of a
# handshake. An honest worker needs one for a few milliseconds. So the newest stream is never
# refused: when there are too many, the oldest one is cut off, of the address that has the most.

_PORT = re.compile(r":\d+$")


@final
class Unproved:
    """The streams to one worker that have not proved themselves yet; on the loop.

    Args:
        most: The highest number of such streams at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Carrier, str] = {}  # the oldest first; each with its address
        self._cut: set[Carrier] = set()

    @contextmanager
    def held(self, carrier: Carrier) -> Iterator[None]:
        """Counts a carrier while its handshake lasts, until it is `proved`."""
        self._open[carrier] = _PORT.sub("", carrier.description)
        try:
            yield
        finally:
            self._open.pop(carrier, None)
            self._cut.discard(carrier)

    def proved(self, carrier: Carrier) -> None:
        """Counts a carrier that has proved itself no more, though its handshake goes on."""
        self._open.pop(carrier, None)

    def too_many(self) -> Carrier | None:
        """Removes and returns the carrier to cut off; None if there are not too many."""
        if len(self._open) <= self._most:
            return None
        ((crowd, _),) = Counter(self._open.values()).most_common(1)
        oldest = next(carrier for carrier, address in self._open.items() if address == crowd)
        del self._open[oldest]
        self._cut.add(oldest)
        return oldest

    def why_cut(self, carrier: Carrier) -> str | None:
        """Returns the reason why a carrier was cut off; None if it was not."""
        if carrier not in self._cut:
            return None
        return f"it was the oldest of {self._most + 1} streams that had proved nothing yet"


# ------------------------------------------------------------------------------------------------

ANNOUNCED_SHARE = 0.5  # of a handshake's time: a proved peer waits that long to be announced
UNFINISHED = "UNFINISHED"  # beside the names of Reason: the dialler left, or was silent


def _ignore_refusal(peer: WorkerInfo, words: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """The rules by which a worker admits others.

    Attributes:
        listens: True if peers may dial this worker. A worker that does not listen dials every peer
            of which it is told, at once and whenever a stream breaks. Two workers of which neither
            listens cannot reach each other.
        guests: The workers that may connect; None for every worker that proves itself. Closed with
            the exchange.
        on_refused: Hears of a dialler that did not prove itself: the worker it claimed to be, and
            the reason for the refusal. Called on the loop; nothing about the claim is known to be
            true.
    """

    listens: bool = True
    guests: GuestList | None = None
    on_refused: Callable[[WorkerInfo, str], None] = _ignore_refusal


OPEN: Final = Entrance()  # for every worker that proves itself


@final
class Door:
    """Takes the carriers of one worker's listeners; on the loop."""

    def __init__(self, terms: Terms, entrance: Entrance, peers: Peers) -> None:
        self._terms = terms
        self._info = terms.credentials.identity.info
        self._guests = entrance.guests
        self._on_refused = entrance.on_refused
        self._peers = peers
        self._unproved = Unproved(terms.limits.unproved)

    async def take(self, carrier: Carrier) -> None:
        """Begins a handshake with the peer that dialled."""
        self._terms.spawn(self._shake_hands(carrier))

    async def _shake_hands(self, carrier: Carrier) -> None:
        with self._unproved.held(carrier):
            if (oldest := self._unproved.too_many()) is not None:
                self._terms.spawn(oldest.close())
            await self._prove_each_other(carrier)

    async def _prove_each_other(self, carrier: Carrier) -> None:
        """Does the listener's half of a handshake; refuses a peer with words."""
        cut = cut_off(self._terms, carrier)
        handshake = self._handshake(carrier)  # for the record, if the carrier proves nothing
        try:
            await carrier.secure()
            handshake = self._handshake(carrier)
            await self._welcome(carrier, handshake)
        except LedOnError:
            pass  # the stream belongs to another exchange of this process, which has it now
        except RefusedError as error:
            if error.reason is Reason.AUTHENTICATION and handshake.claimed is not None:
                self._on_refused(handshake.claimed, error.words)
            told = {"reason": error.reason.name, "words": error.words}
            self._record(CONNECTION_REFUSED, carrier, handshake, **told)
            await self._refuse(carrier, error)
        except (CarrierClosedError, DecodeError) as error:
            words = self._unproved.why_cut(carrier) or str(error)
            told = {"reason": UNFINISHED, "words": words}
            self._record(CONNECTION_REFUSED, carrier, handshake, **told)
            await carrier.close()
        else:
            self._record(CONNECTION_ADMITTED, carrier, handshake)
        finally:
            cut.cancel()

    def _handshake(self, carrier: Carrier) -> AcceptHandshake:
        """Returns a handshake over what a carrier proves."""
        credentials, transports = self._terms.credentials, self._terms.transports.values()
        told = [each for transport in dict.fromkeys(transports) for each in transport.told]
        underlay = Underlay.of(carrier, credentials.certified, tuple(told))
        return AcceptHandshake(credentials.identity, credentials.token, underlay=underlay)

    async def _refuse(self, carrier: Carrier, error: RefusedError) -> None:
        try:
            await carrier.send(refusal(error))
        except CarrierClosedError:
            pass
        finally:
            await carrier.close()

    async def _welcome(self, carrier: Carrier, handshake: AcceptHandshake) -> None:
        claimed = handshake.takes_hello(await receive_small(self._terms, carrier))
        if carrier.takes_over and not handshake.lane_of:
            raise RefusedError(Reason.MALFORMED, "streams begin over gRPC, and move to this port")
        known = self._peers.find(claimed, False)
        # Noted before this side answers: a stream of its own that comes up later has crossed this
        # one (`_check_crossed`).
        came_up = 0 if known is None else known.came_up
        await carrier.send(handshake.answer())
        proof = await receive_small(self._terms, carrier)
        peer_received, knows_session = handshake.takes_proof(proof)
        self._unproved.proved(carrier)  # it may have to wait to be announced, as may others
        if handshake.lane_of:
            carriers, stream = self._named(carrier, claimed, handshake)
            if not handshake.moves:
                stream.lanes.take(carrier, preamble=handshake.welcome(0, resumes=False))
                return
        else:
            carriers = await self._admitted(claimed, knows_session=knows_session)
            self._check_crossed(carriers, came_up)
        # The old stream is let go before the number is told: what it brought after that would come
        # once more.
        received, resumes = carriers.detach(), carriers.came_up > 0
        try:
            preamble = handshake.welcome(received, resumes=resumes)
            way = Way(handshake.stream_id())
            carriers.adopt(carrier, handshake, way, peer_received, preamble)
        except BaseException:
            # The stream that was to move has been let go.
            if handshake.moves:
                carriers.reach()
            raise

    def _record(
        self, event: str, carrier: Carrier, handshake: AcceptHandshake, **fields: str
    ) -> None:
        """Records who connected. A peer that was refused may lie about itself."""
        peer, proved = handshake.claimed, carrier.peer_names
        self._terms.audit.record(
            event,
            peer=None if peer is None else peer.name,
            rank=None if peer is None else peer.rank,
            incarnation=None if peer is None else peer.incarnation,
            address=carrier.description,
            transport=carrier.description.partition(" ")[0].partition(":")[0],
            certificate=None if proved is None else sorted(proved),
            lane=bool(handshake.lane_of) and not handshake.moves,
            **fields,
        )

    def _named(
        self, carrier: Carrier, peer: WorkerInfo, handshake: AcceptHandshake
    ) -> tuple[Carriers, Stream]:
        """Returns the stream to which a lane, or a socket in its place, belongs."""
        carriers = self._peers.find(peer, False)
        stream = None if carriers is None else carriers.stream
        if carriers is None or stream is None or not stream.lanes.accepts(handshake.lane_of):
            raise RefusedError(
                Reason.UNKNOWN_STREAM,
                f"{self._info.name} has no stream from {peer.name} that takes this lane",
            )
        if handshake.moves and not carriers.direct.may_move:
            broken = f"too many sockets between {self._info.name} and {peer.name} broke"
            raise RefusedError(Reason.NOT_ADMITTED, broken)
        there = stream.carrier.takes_over
        if carrier.takes_over is not (there or handshake.moves) or (there and handshake.moves):
            raise RefusedError(
                Reason.MALFORMED,
                "a stream moves from gRPC to a socket, and its lanes are where it is",
            )
        return carriers, stream

    async def _admitted(self, peer: WorkerInfo, *, knows_session: bool) -> Carriers:
        if (peer.name, peer.incarnation) == (self._info.name, self._info.incarnation):
            own = f"{peer.name!r} (incarnation {peer.incarnation})"
            raise RefusedError(Reason.NAME, f"{own} is this worker, and dials nobody here")
        if knows_session and self._peers.find(peer, False) is None:
            reason = Reason.FENCED if self._peers.is_forgotten(peer) else Reason.UNKNOWN_SESSION
            raise RefusedError(reason, self._no_session())
        if self._guests is not None and not self._is_gone(peer):
            seconds = ANNOUNCED_SHARE * self._terms.limits.handshake_seconds
            await self._guests.admits(peer, seconds)
        # Looked up after the wait: the peer may have been lost, or this worker closed, meanwhile.
        return self._session_with(peer)

    def _is_gone(self, peer: WorkerInfo) -> bool:
        """Returns True if the peer was given up here for good; it is told so at once."""
        if (known := self._peers.find(peer, False)) is None:
            return self._peers.is_forgotten(peer)
        return known.connection.loss is not None

    def _session_with(self, peer: WorkerInfo) -> Carriers:
        if self._peers.find(peer, False) is None and self._peers.is_full():
            most = self._terms.limits.connections
            crowded = f"{self._info.name} has {most} connections, as many as it takes"
            raise RefusedError(Reason.NOT_ADMITTED, crowded)
        carriers = self._peers.find(peer, True)
        if carriers is None and self._peers.is_forgotten(peer):
            raise RefusedError(Reason.FENCED, self._no_session())
        if carriers is None:
            raise RefusedError(Reason.INCARNATION, f"{self._info.name} has shut down")
        loss = carriers.connection.loss
        if loss is not None:
            given_up = f"fenced: {self._info.name} has given up this incarnation ({loss.reason})"
            raise RefusedError(Reason.FENCED, given_up)
        if carriers.ended.is_set():
            raise RefusedError(Reason.INCARNATION, f"{self._info.name} has left")
        return carriers

    def _no_session(self) -> str:
        return f"fenced: {self._info.name} has no session with this incarnation any more"

    def _check_crossed(self, carriers: Carriers, came_up: int) -> None:
        """Refuses a stream that crossed one of this side's, when this side has the smaller name.

        That is the case while this side's handshake is under way. It is also the case when this
        side's stream came up after the other's hello: then the peer accepted that stream while it
        knew of its own dial.
        """
        if self._info.name > carriers.peer.name:
            return
        stream = carriers.stream
        crossed = stream is not None and stream.dialled and carriers.came_up > came_up
        if crossed or carriers.hellos:
            raise RefusedError(Reason.DUPLICATE, f"{self._info.name} dials, too, and goes first")
