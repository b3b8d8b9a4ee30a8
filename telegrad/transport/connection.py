"""One peer: its session, whichever carrier is up now, and what is known of its life.

             post() from any thread                     on_envelope, on the loop
                  │                                           ▲
      ┌───────────▼───────────────────────────────────────────┴───────┐
      │ Session, under session_lock (pure: numbers, receipts, pieces) │
      └───────────┬──────────────────────────▲────────────────▲───────┘
         writer task: one frame     reader task: one     Cargo: pieces, both ways
         per write                  frame per message         │
                  └────── Stream: carrier + tags ──── + ─── Lanes

The loop is woken once for whatever is posted until the writer has found nothing to do. Streams
come from `reach` (this side dialled) or from the Exchange (the peer did) through `adopt`; they
end through `detach`, after which nothing of them is read any more: only then may the number of
the last envelope held be told to the peer. (A copy that is under way then may still complete an
envelope; the peer announces it again, and it is known.) A lane that breaks, or stands still while
the peer lives, ends its stream; the next one carries what is left.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import final

from telegrad.errors import DecodeError, WorkerLostError
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.bulk_cargo import Cargo
from telegrad.transport.bulk_lanes import Lanes
from telegrad.transport.idle_frames import IdleFrames
from telegrad.transport.liveness import Liveness
from telegrad.transport.loss import Loss, without_carrier
from telegrad.transport.session import Session, SessionStatistics
from telegrad.transport.stream import Stream
from telegrad.transport.tags import BadTagError
from telegrad.transport.terms import Terms
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, Frame, Goodbye, pack_frame

__all__ = ["Connection"]

logger = logging.getLogger(__name__)

# Carriers that come up and break before they bring one frame: an honest network does not do that
# ten times in a row, and dialling for ever would keep a processor busy.
FRUITLESS_CARRIERS = 10
# Lanes that stood still get twice the time on the next stream, up to so often: 1 Mbit/s takes 8 s.
MOST_PATIENCE = 16


@final
class Connection:
    """The promise towards one peer: every envelope is handed over exactly once, or it is lost.

    Args:
        peer: The other incarnation.
        terms: What it shares with this worker's other connections.
    """

    def __init__(self, peer: WorkerInfo, terms: Terms) -> None:
        self.peer = peer
        self.last_failure = ""  # of a dial, for the words of a loss by silence
        self.carriers = 0  # how many came up; tells a crossed dial from a redial
        self.liveness: Liveness | None = None
        self._terms = terms
        self._session_lock = threading.Lock()  # guards the next five
        self._session = Session(terms.limits.received)
        self._endpoints: tuple[str, ...] = ()
        self._woken = False
        self._loss: Loss | None = None
        self._left = False
        self._stream: Stream | None = None  # this and what follows: on the loop alone
        self._beat_due = False
        self._acknowledged = 0  # up to where the peer had receipts at the last tick
        self._lost_after = terms.lost_after
        self._idle_frames = IdleFrames()
        self._fruitless = 0  # carriers in a row that brought no frame
        self._fruitless_lanes = 0  # streams in a row whose lanes broke and had moved no chunk
        self._patience = terms.lost_after  # with lanes that move nothing
        self._peer_done = False  # it said goodbye, and waits for what is still under way here
        self._cargo = Cargo(
            self._session, self._session_lock, terms.bulk, self._hand_over, self._cargo_lost
        )
        self._reach: Callable[[Connection], None] | None = None
        self.ended = asyncio.Event()

    # From any thread.

    def post(self, envelope: Envelope) -> None:
        """Queues an envelope; never blocks.

        Raises:
            WorkerLostError: The peer is lost, or this side has left it.
        """
        with self._session_lock:
            self._check_living()
            self._session.post(envelope, self._terms.clock())
            woken, self._woken = self._woken, True
            unread = self._session.replies_unread
        if not woken:
            self._terms.loop.call_soon(self.wake_on_loop)
        if unread > self._terms.limits.unread_replies:
            error = DecodeError(f"it takes no replies ({unread} wait for it)")
            self._terms.loop.call_soon(self._broke_on_loop, error)

    def set_endpoints(self, endpoints: Sequence[str]) -> None:
        """Says where the peer listens, in the order to try."""
        with self._session_lock:
            self._endpoints = tuple(endpoints)
            waiting = self._woken
        if waiting:  # what was posted before found nobody to dial
            self._terms.loop.call_soon(self.wake_on_loop)

    def dial(self) -> None:
        """Has the peer dialled, whether or not there is something to send."""
        self._terms.loop.call_soon(self.reach_on_loop)

    def cut(self, reason: str) -> None:
        """Takes it that neither side can dial the other; `on_lost` does not follow.

        Args:
            reason: What to do about it, in words; who posts hears it.
        """
        with self._session_lock:
            if self._loss is None and not self._left:
                self._loss = Loss(reason, 0.0, unreachable=True)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where the peer listens, as far as is known."""
        with self._session_lock:
            return self._endpoints

    @property
    def loss(self) -> WorkerLostError | None:
        """A new exception that says why the peer is lost; None while it is not."""
        with self._session_lock:
            return None if self._loss is None else self._loss.error(self.peer)

    @property
    def left(self) -> bool:
        """Whether this side has said goodbye, or is about to."""
        with self._session_lock:
            return self._left

    def lose(self, reason: str, *, left: bool = False, fenced: bool = False) -> None:
        """Gives the peer up, for good; `on_lost` follows on the loop. Idempotent.

        Args:
            reason: In words.
            left: Whether it said goodbye.
            fenced: Whether it had given up this worker first.
        """
        with self._session_lock:
            known = self._loss
            if self._left or not (known is None or known.unreachable):
                return
            silence = 0.0 if self.liveness is None else self.liveness.silence(self._terms.clock())
            self._loss = Loss(reason, silence, left, fenced)
        self._terms.loop.call_soon(self._lost_on_loop)

    def statistics(self) -> SessionStatistics:
        """Returns the counts of the session."""
        with self._session_lock:
            return self._session.statistics()

    # On the loop.

    @property
    def stream(self) -> Stream | None:
        """The carrier that is up now."""
        return self._stream

    @property
    def wants_carrier(self) -> bool:
        """Whether there is none, and one would be of use."""
        return self._stream is None and self.loss is None and not self.ended.is_set()

    @property
    def received_number(self) -> int:
        """The number up to which every envelope is held; to be told once no stream is up."""
        with self._session_lock:
            return self._session.received_number

    def on_reach(self, reach: Callable[[Connection], None]) -> None:
        """Says what dials: called on the loop when a carrier is wanted and an endpoint known."""
        self._reach = reach

    def wake_on_loop(self) -> None:
        """Looks for something to write; without a carrier dials, or waits to be dialled."""
        if self._stream is not None:
            self._stream.work.set()
        else:
            self.reach_on_loop()

    def reach_on_loop(self) -> None:
        """Dials, where an endpoint is known; else the peer has the usual time to do that."""
        if self._reach is None or not self.wants_carrier:
            return
        self._start_life()
        if self.endpoints:
            self._reach(self)

    def lanes_of(self, stream_id: bytes, endpoint: str) -> Lanes:
        """Returns what moves big parts beside a stream that is to be adopted.

        Args:
            stream_id: The stream's.
            endpoint: Where this side dialled it; empty when the peer did.
        """
        return Lanes(
            self._terms,
            self.peer,
            stream_id,
            endpoint,
            cargo=self._cargo,
            patience=self._patience,
            on_broken=self._lane_broken,
        )

    def adopt(self, stream: Stream, peer_received: int) -> None:
        """Takes a new carrier, in place of the present one.

        Raises:
            DecodeError: What the peer says that it holds cannot be; the carrier is not taken.
        """
        self.detach()
        with self._session_lock:
            self._session.connection_made(peer_received)
            self._woken = True
        self._stream = stream
        self._beat_due = True
        self._peer_done = False
        self.carriers += 1
        self._terms.counters.connections += 1
        self._start_life().opened(self._terms.clock())
        self._terms.spawn(self._read(stream))
        self._terms.spawn(self._write(stream))
        logger.info("connected to %s by %s", self.peer.name, stream.carrier.description)

    def detach(self, farewell: bytes = b"") -> None:
        """Lets go of the present carrier: nothing that it brings is read any more.

        Args:
            farewell: A last message for it.
        """
        stream, self._stream = self._stream, None
        if stream is None:
            return
        with self._session_lock:
            self._session.connection_lost()
        stream.let_go(farewell)
        if not farewell:
            self._terms.spawn(stream.carrier.close())

    def tick(self, now: float) -> None:
        """Beats and judges; called by the exchange several times per beat."""
        self._idle_frames.tick()
        if self.liveness is None or self.ended.is_set() or self.loss is not None:
            return
        with self._session_lock:
            acknowledged = self._session.acknowledged
        if acknowledged > self._acknowledged:
            self._acknowledged = acknowledged
            self.liveness.acknowledged(now)
        if self.liveness.tick(now):
            self.lose(self._silence_words(now))
        elif self._stream is not None:
            if self.liveness.due(now):
                self._beat_due = True
                self._stream.work.set()
            if self._stream.lanes.stand_still(now):
                self._patience = min(2 * self._patience, MOST_PATIENCE * self._terms.lost_after)
                self._broken(self._stream, CarrierClosedError("its lanes stand still"))

    def spare_on_loop(self, seconds: float) -> None:
        """Has the peer given up after so many seconds of silence, if that is later."""
        self._lost_after = max(self._lost_after, seconds)
        if self.liveness is not None:
            self.liveness.lost_after = self._lost_after

    def leave_on_loop(self, reason: str) -> None:
        """Has a goodbye follow what was posted; `ended` is set when the peer has it all."""
        with self._session_lock:
            cut = self._loss is not None and self._loss.unreachable
            if (self._loss is not None and not cut) or self._left:
                return
            self._left = True
            self._session.leave(reason)
            unreachable = self.carriers == 0 or not self._endpoints
            idle = self._stream is None and self._session.flushed and unreachable
        if idle or cut:  # it never knew of this side, or will find out when it dials
            self.end()
        else:
            self.wake_on_loop()

    def gone_on_loop(self, reason: str, *, fenced: bool = False) -> None:
        """Hears that the peer can never be reached again."""
        if self.left:
            self.end()
        else:
            self.lose(reason, fenced=fenced)

    def end(self) -> None:
        """Closes, whatever is still under way."""
        self.detach()
        with self._session_lock:
            self._session.abandon()  # buffers that nobody will ask for again
        self.ended.set()

    def _broke_on_loop(self, error: DecodeError) -> None:
        """Gives up a peer that did what no worker does: it would do the same again and again."""
        if self._stream is not None and self.loss is None:
            self._stream.record_cut_off(self._terms.audit, self.peer, error)
        self.gone_on_loop(f"it broke the protocol: {error}")

    def _start_life(self) -> Liveness:
        if self.liveness is None:
            self.liveness = Liveness(self._terms.clock(), lost_after=self._lost_after)
        return self.liveness

    def _check_living(self) -> None:
        if self._loss is not None:
            raise self._loss.error(self.peer)
        if self._left:
            raise Loss("this worker has left it", 0.0).error(self.peer)

    def _lost_on_loop(self) -> None:
        error = self.loss
        if error is None or self.ended.is_set():
            return
        self.end()
        logger.debug("%s", error)
        self._terms.receiver.on_lost(self.peer, error)

    def _silence_words(self, now: float) -> str:
        assert self.liveness is not None
        words = self.liveness.silence_words(now)
        if self._stream is not None:
            return words
        return words + without_carrier(self.endpoints, self.last_failure, ever=self.carriers > 0)

    async def _read(self, stream: Stream) -> None:
        """Hands over what a stream brings until it breaks or is let go."""
        try:
            while stream.is_open():
                message = await stream.carrier.receive()
                if not stream.is_open():
                    return
                self._terms.counters.bytes_received += len(message)
                self._take(stream, stream.opened(message, self._terms.limits.received))
        except (CarrierClosedError, BadTagError) as error:
            stream.record_cut_off(self._terms.audit, self.peer, error)
            self._broken(stream, error)
        except DecodeError as error:
            self._broke_on_loop(error)

    def _take(self, stream: Stream, frame: Frame) -> None:
        self._fruitless = 0
        with self._session_lock:
            complete = self._session.received(frame)
            self._idle_frames.take(self._session.news)
            due = self._session.pending and not self._woken
        if frame.awaited:
            stream.lanes.announced()
        self._deliver(complete)
        if frame.heartbeat is not None and self.liveness is not None:
            self.liveness.heard(frame.heartbeat, self._terms.clock())
            stream.lanes.heard(frame.heartbeat.chunks)
            if self.liveness.owes:
                due = self._beat_due = True
        if frame.goodbye is not None:
            self._peer_left(stream, frame.goodbye)
        elif due:
            stream.work.set()

    def _deliver(self, complete: Sequence[Envelope]) -> None:
        self._terms.counters.envelopes_received += len(complete)
        for envelope in complete:
            self._terms.receiver.on_envelope(self.peer, envelope)

    def _hand_over(self, complete: Sequence[Envelope]) -> None:
        """Takes envelopes that came by lanes, and has the receipt written that is due for them."""
        self._deliver(complete)
        with self._session_lock:
            due = self._session.pending
        if due and self._stream is not None:
            self._stream.work.set()

    def _cargo_lost(self, error: BaseException) -> None:
        self.gone_on_loop(f"an envelope from it could not be put together: {error!r}")

    def _peer_left(self, stream: Stream, goodbye: Goodbye) -> None:
        """Answers a goodbye, so that the peer knows that all it said was heard.

        If this side leaves, too, its own goodbye is the answer, behind what is still under way.
        """
        with self._session_lock:
            answered, left = self._session.goodbye_written, self._left
            if left and not answered:
                self._peer_done = True
                stream.work.set()
                return
            last = Frame(receipt=self._session.received_number, goodbye=Goodbye("answer"))
        self.detach(farewell=b"" if answered else pack_frame(last))
        if left:
            self.end()
        else:
            self.lose(goodbye.reason or "it left", left=True)

    async def _write(self, stream: Stream) -> None:
        """Writes what is queued, one frame at a time, until the stream breaks or is let go."""
        try:
            if stream.preamble:
                await stream.carrier.send(stream.preamble)
            while stream.is_open():
                stream.work.clear()
                message = self._next_message(stream)
                if message is None:
                    await stream.work.wait()
                else:
                    await stream.carrier.send(message)
                    self._end_if_said(stream)
            await stream.say_farewell()
        except CarrierClosedError as error:
            self._broken(stream, error)
            if not stream.is_open():  # let go with a farewell that could not be said
                await stream.carrier.close()

    def _end_if_said(self, stream: Stream) -> None:
        """Ends once both sides have said goodbye, this one last."""
        with self._session_lock:
            said = self._session.goodbye_written
        if self._peer_done and said and self._stream is stream:
            self.end()

    def _next_message(self, stream: Stream) -> bytes | None:
        now, counters = self._terms.clock(), self._terms.counters
        with self._session_lock:
            if not self._session.pending and not self._beat_due:
                self._woken = False
                return None
            frame = self._session.next_write(now=now)
            waiting = self._session.pieces_waiting
        if self._beat_due and self.liveness is not None:
            self._beat_due = False
            frame.heartbeat = self.liveness.beat(
                now, lag=counters.lag, busy=self._terms.load(), chunks=stream.lanes.taken
            )
        if waiting:
            stream.lanes.wake()
        message = stream.frames.seal(pack_frame(frame))
        counters.envelopes_sent += len(frame.envelopes)
        counters.bytes_sent += len(message)
        counters.writes += 1
        return message

    def _lane_broken(self, lanes: Lanes, error: Exception) -> None:
        """Goes on without a stream of which a lane broke, or never came up.

        Once this side has said goodbye it needs no lane: whoever answers lets go of them first. A
        peer that still sends notices on its own end.
        """
        stream = self._stream
        if stream is None or stream.lanes is not lanes:
            return
        with self._session_lock:
            done = self._session.goodbye_written
        self._fruitless_lanes = 0 if lanes.moved else self._fruitless_lanes + 1
        if isinstance(error, DecodeError):
            self._broke_on_loop(error)
        elif done:
            logger.debug("a lane of %s ended: %s", self.peer.name, error)
        elif self._fruitless_lanes >= FRUITLESS_CARRIERS:
            self.gone_on_loop(f"{self._fruitless_lanes} bulk lanes in a row broke: {error}")
        else:
            self._broken(stream, error)

    def _broken(self, stream: Stream, error: Exception) -> None:
        """Goes on without a stream that broke; dials again at once where that is possible."""
        if self._stream is not stream:
            return
        logger.debug("lost the carrier to %s: %s", self.peer.name, error)
        self.detach()
        self._fruitless += 1
        if self._fruitless >= FRUITLESS_CARRIERS:
            self.gone_on_loop(f"{self._fruitless} carriers in a row broke at once: {error}")
        elif self._only_goodbye_left():
            self.end()  # nobody can dial it to say that, and it may have ended itself
        else:
            self.reach_on_loop()

    def _only_goodbye_left(self) -> bool:
        """Whether this side leaves a peer that does not listen, and nothing else is to be said."""
        with self._session_lock:
            return self._left and not self._endpoints and self._session.flushed
