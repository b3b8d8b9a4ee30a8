"""The bulk lanes of one stream: opened when there is something big to move, let go with it.

Whoever dialled the control stream dials its lanes, at the same endpoint. Each proves that it
belongs to this stream and no other (`telegrad.transport.handshake`); after that its chunks carry
no tags of their own: without TLS, array bytes can be altered by somebody on the path.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, final

from telegrad.errors import DecodeError
from telegrad.transport.answer import ask, cut_off, receive_small, record_refusal
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.bulk_cargo import Cargo
from telegrad.transport.bulk_lane import Lane
from telegrad.transport.bulk_standstill import Standstill
from telegrad.transport.terms import Terms
from telegrad.types import WorkerInfo

__all__ = ["LANES", "Lanes"]

# benchmarks/bulk_lanes.py on two busy cores, medians: two lanes move 1.1 times (pushes) to 1.35
# times (echoes) as much as one; a third 1.1 and 0.97 times as much as two, which is the noise.
LANES = 2
MOST_LANES = 8  # that a dialler may open: one of another version may know better


@final
class Lanes:
    """What big parts travel on, beside one control stream; on the loop.

    Args:
        terms: What all connections share.
        peer: Who is at the other end.
        stream_id: The control stream's.
        endpoint: Where this side dialled the control stream, and dials its lanes; empty when the
            peer did, and does.
        cargo: What is loaded and unloaded.
        patience: Seconds without progress after which lanes stand still.
        on_broken: Hears once that a lane broke; has to let all of them go.
    """

    def __init__(
        self,
        terms: Terms,
        peer: WorkerInfo,
        stream_id: bytes,
        endpoint: str,
        *,
        cargo: Cargo,
        patience: float,
        on_broken: Callable[[Lanes, Exception], None],
    ) -> None:
        self._terms = terms
        self._peer = peer
        self._stream_id = stream_id
        self._endpoint = endpoint
        self._cargo = cargo
        self._on_broken = on_broken
        self._standstill = Standstill(terms.clock(), patience=patience)
        self._lanes: list[Lane] = []
        self._dialling = False
        self._open = True

    @property
    def dialled(self) -> bool:
        """Whether this side dialled the control stream."""
        return bool(self._endpoint)

    @property
    def sent(self) -> int:
        """How many chunks were given to these lanes."""
        return sum(lane.sent for lane in self._lanes)

    @property
    def taken(self) -> int:
        """How many chunks came on these lanes; heartbeats tell the peer."""
        return sum(lane.taken for lane in self._lanes)

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

    def stand_still(self, now: float) -> bool:
        """Returns whether chunks are owed and none has been taken for too long."""
        return self._standstill.tick(now, sent=self.sent, waiting=self._cargo.waiting)

    def accepts(self, stream_id: bytes) -> bool:
        """Returns whether a lane of that stream may be taken from the peer."""
        mine = self._open and not self.dialled and stream_id == self._stream_id
        return mine and len(self._lanes) < MOST_LANES

    def take(self, carrier: Carrier, *, preamble: bytes = b"") -> None:
        """Adds a lane whose handshake is done.

        Args:
            carrier: What moves its bytes.
            preamble: What has to be sent before the first chunk.
        """
        terms = self._terms
        lane = Lane(carrier, self._cargo, terms.bulk, terms.counters, preamble=preamble)
        self._lanes.append(lane)
        terms.counters.lanes += 1
        terms.spawn(self._run(lane, lane.read()))
        terms.spawn(self._run(lane, lane.write()))

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
        if self._open and self.dialled and not self._dialling:
            self._dialling = True
            for _ in range(LANES):
                self._terms.spawn(self._dial())

    async def _dial(self) -> None:
        try:
            carrier = await self._prove()
        except ConnectionError as error:
            self._break(error)
            return
        if self._open:
            self.take(carrier)
        else:
            await carrier.close()

    async def _prove(self) -> Carrier:
        terms = self._terms
        answer = await ask(terms, self._endpoint, self._peer, lane_of=self._stream_id)
        cut = cut_off(terms, answer.carrier)
        try:
            await answer.carrier.send(answer.handshake.prove(0, resumes=False))
            answer.handshake.takes_welcome(await receive_small(terms, answer.carrier))
        except BaseException as error:
            terms.spawn(answer.carrier.close())
            record_refusal(terms, error, answer.endpoint, answer.peer, lane=True)
            raise
        finally:
            cut.cancel()
        return answer.carrier

    async def _run(self, lane: Lane, task: Coroutine[Any, Any, None]) -> None:
        try:
            await task
        except (CarrierClosedError, DecodeError, MemoryError) as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        if self._open:
            self._on_broken(self, error)
