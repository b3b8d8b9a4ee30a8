"""The bulk lanes of one stream: opened when there is something big to move, let go with it.

Whoever dialled the control stream dials its lanes, at the same endpoint; or one lane over a socket
of its own (`socket_lane`), where both ends have that. Each proves that it belongs to this stream and
no other (`telegrad.transport.security.handshake`). Chunks are as safe as the stream is: under TLS they are
encrypted; without it they carry no tags of their own, and can be altered by somebody on the path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, final

from telegrad.errors import DecodeError
from telegrad.transport.base import Blocking, Carrier, CarrierClosedError
from telegrad.transport.bulk.cargo import Cargo
from telegrad.transport.bulk.lane import Lane
from telegrad.transport.bulk.pace import Pace
from telegrad.transport.bulk.seal import can_seal, make_seal
from telegrad.transport.bulk.socket_lane import SocketLane
from telegrad.transport.bulk.standstill import Standstill
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.session.ask import Answer, ask, cut_off, receive_small, record_refusal
from telegrad.transport.session.terms import Terms
from telegrad.transport.sockets.tcp import BULK_SCHEME, MOVES_TOLD, bulk_endpoint
from telegrad.types import WorkerInfo

__all__ = ["LANES", "Lanes", "Way", "check_path"]

logger = logging.getLogger(__name__)

# benchmarks/bulk_lanes.py on two busy cores, medians: two lanes move 1.1 times (pushes) to 1.35
# times (echoes) as much as one; a third 1.1 and 0.97 times as much as two, which is the noise.
LANES = 2
MOST_LANES = 8  # that a dialler may open: one of another version may know better


@final
@dataclass(frozen=True, slots=True)
class Way:
    """What lanes know of their control stream.

    Attributes:
        stream_id: Its name.
        secret: What its two ends share; empty where it is plain.
        endpoint: Where this side dialled it, and dials its lanes; empty when the peer did, and does.
        bulk_endpoint: Where a lane over a socket of its own is dialled; empty where there is none.
        sockets: Whether such lanes are taken from the peer.
        moves: Whether the listener takes frames over such a socket.
    """

    stream_id: bytes
    secret: bytes
    endpoint: str = ""
    bulk_endpoint: str = ""
    sockets: bool = True
    moves: bool = False

    @classmethod
    def dialled(cls, answer: Answer) -> Way:
        """Returns that of a stream that this side dialled."""
        shake, endpoint = answer.handshake, answer.endpoint
        socket = bulk_endpoint(endpoint, shake.capabilities)
        moves = MOVES_TOLD in shake.capabilities
        return cls(shake.stream_id(), shake.lane_secret(), endpoint, socket, moves=moves)

    def moved(self, stream_id: bytes, secret: bytes) -> Way:
        """Returns that of a stream that has taken the place of this one."""
        return replace(self, stream_id=stream_id, secret=secret, moves=False)

    def without_socket(self) -> Way:
        """Returns the same, for lanes over gRPC."""
        return replace(self, bulk_endpoint="", sockets=False)


@final
class Lanes:
    """What big parts travel on, beside one control stream; on the loop.

    Args:
        terms: What all connections share.
        peer: Who is at the other end.
        way: What they know of the control stream.
        cargo: What is loaded and unloaded.
        patience: Seconds without progress after which lanes stand still.
        on_broken: Hears once that a lane broke; has to let all of them go.

    Attributes:
        held: Whether the stream is about to move to a socket (`moving`), so that no lanes are dialled.
    """

    def __init__(
        self,
        terms: Terms,
        peer: WorkerInfo,
        way: Way,
        *,
        cargo: Cargo,
        patience: float,
        on_broken: Callable[[Lanes, Exception], None],
    ) -> None:
        self._terms = terms
        self._peer = peer
        self._way = way
        self._cargo = cargo
        self._on_broken = on_broken
        self._standstill = Standstill(terms.clock(), patience=patience)
        self._pace = Pace(terms.clock())
        self._lanes: list[Lane | SocketLane] = []
        sockets = terms.transports.get(BULK_SCHEME) if way.moves and way.bulk_endpoint else None
        self.held = sockets is not None and sockets.takes_frames
        self._wanted = self._dialling = False
        self._at_socket = False  # dials a socket, or has
        self._open = True

    @property
    def way(self) -> Way:
        """What they know of the control stream."""
        return self._way

    @property
    def dialled(self) -> bool:
        """Whether this side dialled the control stream."""
        return bool(self._way.endpoint)

    @property
    def sent(self) -> int:
        """How many chunks were given to these lanes."""
        return sum(lane.sent for lane in self._lanes)

    @property
    def taken(self) -> int:
        """How many chunks came on these lanes; heartbeats tell the peer."""
        return sum(lane.taken for lane in self._lanes)

    @property
    def known_taken(self) -> int:
        """How many chunks the peer has said that it took."""
        return self._standstill.taken

    @property
    def by_socket(self) -> bool:
        """Whether they are over sockets of their own, or are to be."""
        return self._at_socket or any(lane.carrier.blocking is not None for lane in self._lanes)

    @property
    def moved(self) -> bool:
        """Whether any chunk came or went."""
        return any(lane.taken or lane.left for lane in self._lanes)

    def wake(self) -> None:
        """Hears that there are pieces to send."""
        self._want()
        for lane in self._lanes:
            lane.wake()

    def announced(self) -> None:
        """Hears that the peer announced big parts."""
        self._want()
        for lane in self._lanes:
            lane.announced()

    def heard(self, chunks: int) -> None:
        """Hears how many chunks the peer took."""
        self._standstill.heard(chunks)
        self._pace.heard(chunks, self._terms.clock())

    def stand_still(self, now: float) -> bool:
        """Returns whether chunks are owed and none has been taken for too long."""
        return self._standstill.tick(now, sent=self.sent, waiting=self._cargo.waiting)

    def accepts(self, stream_id: bytes) -> bool:
        """Returns whether a lane of that stream may be taken from the peer."""
        mine = self._open and not self.dialled and stream_id == self._way.stream_id
        return mine and len(self._lanes) < MOST_LANES

    @property
    def takes_sockets(self) -> bool:
        """Whether lanes over sockets of their own may be taken from the peer."""
        return self._way.sockets

    def take(self, carrier: Carrier, transcript: bytes, *, preamble: bytes = b"") -> None:
        """Adds a lane whose handshake is done.

        Args:
            carrier: What moves its bytes.
            transcript: Both hellos of its handshake in full.
            preamble: What has to be sent before the first chunk.

        Raises:
            CarrierClosedError: It broke meanwhile, or its bytes cannot be protected.
        """
        if carrier.blocking is None:
            self._lanes.append(self._on_loop(carrier, preamble))
        else:
            self._lanes.append(self._in_threads(carrier, carrier.blocking, transcript, preamble))
        self._terms.counters.lanes += 1

    def release(self) -> None:
        """Hears that the stream stays where it is: lanes are dialled as soon as they are wanted."""
        self.held = False
        if self._wanted:
            self._want()

    def let_go(self) -> None:
        """Ends all lanes, those on their way as well. Idempotent."""
        if not self._open:
            return
        self._open = False
        for lane in self._lanes:
            lane.let_go()
            self._terms.spawn(lane.carrier.close())

    def _want(self) -> None:
        """Dials, on the first call and where that is this side's to do."""
        self._wanted = True
        if self._open and self.dialled and not self._dialling and not self.held:
            self._dialling = True
            self._terms.spawn(self._dial())

    def _on_loop(self, carrier: Carrier, preamble: bytes) -> Lane:
        terms = self._terms
        counters, pace = terms.counters, self._pace
        lane = Lane(carrier, self._cargo, terms.bulk, counters, pace=pace, preamble=preamble)
        terms.spawn(self._run(lane.read()))
        terms.spawn(self._run(lane.write()))
        return lane

    def _in_threads(
        self, carrier: Carrier, below: Blocking, transcript: bytes, preamble: bytes
    ) -> SocketLane:
        terms = self._terms
        lane = SocketLane(
            carrier,
            below,
            self._cargo,
            terms.bulk,
            terms.counters,
            pace=self._pace,
            seal=make_seal(self._way.secret, transcript, dialled=self.dialled),
            on_broken=lambda error: terms.loop.call_soon(self._break, error),
            preamble=preamble,
        )
        lane.start()
        return lane

    async def _dial(self) -> None:
        """Opens the lane over a socket of its own, where both ends have that; else those over gRPC."""
        if self._way.bulk_endpoint and BULK_SCHEME in self._terms.transports:
            self._at_socket = True
            try:
                await self._dial_at(self._way.bulk_endpoint)
            except ConnectionError as error:
                self._at_socket = False
                if isinstance(error, RefusedError) and error.reason is Reason.UNKNOWN_STREAM:
                    self._break(error)  # the stream has ended there, or is another's
                    return
                name, where = self._peer.name, self._way.bulk_endpoint
                words = f"big arrays go to {name} over gRPC, not {where}: {error}"
                self._terms.bulk.run(logger.warning, words)  # a handler may block
            else:
                return
        for _ in range(LANES):
            self._terms.spawn(self._dial_grpc())

    async def _dial_grpc(self) -> None:
        try:
            await self._dial_at(self._way.endpoint)
        except ConnectionError as error:
            self._break(error)

    async def _dial_at(self, endpoint: str) -> None:
        answer = await self._prove(endpoint)
        if not self._open:
            await answer.carrier.close()
            return
        try:
            self.take(answer.carrier, answer.handshake.transcript)
        except CarrierClosedError:
            await answer.carrier.close()
            raise

    async def _prove(self, endpoint: str) -> Answer:
        terms = self._terms
        answer = await ask(terms, endpoint, self._peer, lane_of=self._way.stream_id)
        cut = cut_off(terms, answer.carrier)
        try:
            check_path(self._way, terms, answer.carrier)
            await answer.carrier.send(answer.handshake.prove(0, resumes=False))
            answer.handshake.takes_welcome(await receive_small(terms, answer.carrier))
        except BaseException as error:
            terms.spawn(answer.carrier.close())
            record_refusal(terms, error, answer.endpoint, answer.peer, lane=True)
            raise
        finally:
            cut.cancel()
        return answer

    async def _run(self, task: Coroutine[Any, Any, None]) -> None:
        try:
            await task
        except (CarrierClosedError, DecodeError, MemoryError) as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        if self._open:
            self._on_broken(self, error)


def check_path(way: Way, terms: Terms, carrier: Carrier) -> None:
    """Checks that nothing plain leaves this machine by a socket, unless the job is insecure.

    Raises:
        CarrierClosedError: It would.
    """
    below = carrier.blocking
    if below is None or terms.credentials.token is None:
        return
    if way.secret and not can_seal:
        raise CarrierClosedError("pip install cryptography: its bytes have to be encrypted")
    if not way.secret and not below.is_loopback:
        raise CarrierClosedError("it is on another machine, and the stream is not encrypted")
