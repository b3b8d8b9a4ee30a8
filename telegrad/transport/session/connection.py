"""One peer: its session, whichever carrier is up now, and what is known of its life.

             post() from any thread                     on_envelope, on the loop
                  │                                           ▲
      ┌───────────▼───────────────────────────────────────────┴───────┐
      │ Session, under session_lock (pure: numbers, receipts, pieces) │
      └───────────┬──────────────────────────▲────────────────▲───────┘
            next_message                    take          Cargo: pieces, both ways
                  └── Pump ── Stream: carrier + tags ── + ── Lanes

Pumps move frames: two tasks on the loop, or, where the carrier lets them, the threads that post and
wait (`io.reader`). The writer's turn is given once for whatever is posted until the writer has found
nothing to do. Streams come from `reach` (this side dialled) or from the Exchange (the peer did) through
`adopt`; they end through `detach`, after which nothing of them is read: only then may the number of the
last envelope held be told to the peer. (A copy under way may still complete an envelope, which the peer
announces again.) A lane that breaks, or stands still while the peer lives, ends its stream.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVarTuple, final

from telegrad.errors import DecodeError, WorkerLostError
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.bulk.cargo import Cargo
from telegrad.transport.bulk.lanes import Lanes, Way
from telegrad.transport.io.pump import Pump, TaskPump
from telegrad.transport.io.socket_pump import SocketPump
from telegrad.transport.session.liveness import IdleFrames, Liveness
from telegrad.transport.session.session import Session, SessionStatistics
from telegrad.transport.session.stream import Loss, Stream, StreamFrames, breakage, without_carrier
from telegrad.transport.session.terms import Moved, Terms
from telegrad.types import WorkerInfo
from telegrad.wire import (
    LENT_BYTES,
    NO_MEMORY,
    Envelope,
    Frame,
    Goodbye,
    Heartbeat,
    Memory,
    escaped,
    pack_frame,
    unpack_frame,
)

__all__ = [
    "Connection",
    "Traffic",
]


# -- traffic in both directions: a session under its lock, for any thread ------------------------
#
# The writer's turn belongs to one thread at a time: it is taken with `turn`, by whoever finds that
# nobody has it, and given back when `next_message` returns None. Where there is no stream the turn is
# taken all the same, and the next stream begins with it.

Ts = TypeVarTuple("Ts")

# Posts of a burst after which it is written: at 15 us each half a millisecond. The other end has
# something to do while more are posted.
WRITTEN_TOGETHER = 32


@final
class Traffic:
    """One session, the stream that carries it now, and the signs of life on that.

    Attributes:
        lock: Guards the session and all that is here; never held across a wait.
        session: The session.
        stream: The carrier that is up now; set on the loop.
        pump: What moves its messages.
        waits: Whether the turn is taken: there may be something to write.

    Args:
        terms: What all connections share.
        hand_over: Takes the envelopes that are complete; in the thread that reads.
        goodbye: Hears that the peer leaves; on the loop.
        look: Called on the loop when there is something to write, and no stream.
    """

    def __init__(
        self,
        terms: Terms,
        hand_over: Callable[[Sequence[Envelope]], None],
        goodbye: Callable[[Stream, Goodbye], None],
        look: Callable[[], None],
    ) -> None:
        self.lock = threading.Lock()
        self.session = Session(terms.limits.received)
        self.stream: Stream | None = None
        self.pump: Pump | None = None
        self._terms = terms
        self._limits = terms.limits.received
        self._ended = Moved()  # by the streams before this one
        self._hand_over = hand_over
        self._goodbye = goodbye
        self._look = look
        self.waits = False
        self._beat_due = False
        self._return_due = False  # so much shared memory that it should not wait for the next frame
        self._life: Liveness | None = None
        self._idle_frames = IdleFrames()
        self._acknowledged = 0  # up to where the peer had receipts at the last tick
        self._chunks = 0, 0  # what both ends had taken then from the lanes of this stream

    def turn(self) -> Pump | None:
        """Takes the writer's turn if nobody has it; whoever gets a pump has to wake it.

        Holds the lock.
        """
        if self.waits:
            return None
        self.waits = True
        if self.stream is None:
            self._terms.loop.call_soon(self._look)
        return self.pump

    def stir(self) -> None:
        """Has somebody look for what there is to write."""
        with self.lock:
            pump = self.turn()
        if pump is not None:
            pump.wake()

    # Of a stream: in the thread that reads it, or has the turn.

    def take(self, stream: Stream, message: bytes) -> bool:
        """Takes a message of a stream, unless that was let go meanwhile.

        Returns:
            Whether it brought a request, and no reply behind that.

        Raises:
            BadTagError: Its tag is wrong.
            DecodeError: It breaks the protocol.
        """
        stream.messages_taken += 1
        stream.bytes_taken += len(message)
        frame = unpack_frame(stream.frames.open(message), self._limits)
        session, beat = self.session, frame.heartbeat
        try:
            if frame.lending is not None:
                _take_lent(stream, frame)
            with self.lock:
                if self.stream is not stream:
                    return False
                news = session.news
                complete = session.received(frame)
                if session.news == news:
                    self._idle_frames.take(news)
                if beat is not None and self._life is not None:
                    self._life.heard(beat, self._terms.clock())
                    self._beat_due |= self._life.owes
                if frame.lending is not None and stream.slabs is not None:
                    self._return_due |= stream.slabs.due
                due = session.pending or self._beat_due or self._return_due
                pump = self.turn() if due and frame.goodbye is None else None
        except BaseException:
            if (
                stream.slabs is not None
            ):  # what the frame holds will come again, from the same memory
                stream.slabs.close()
            raise
        stream.frames_taken += 1
        if frame.awaited:
            self._on_loop(stream.lanes.announced)
        if beat is not None:
            self._on_loop(stream.lanes.heard, beat.chunks)
        if complete:
            self._hand_over(complete)
        if frame.goodbye is not None:
            self._on_loop(self._goodbye, stream, frame.goodbye)
        if pump is not None:
            pump.wake()
        return bool(complete) and not complete[-1].reply

    def next_message(self, stream: Stream) -> bytes | None:
        """Returns what to write next on a stream; with None the turn is over."""
        session = self.session
        with self.lock:
            if self.stream is not stream:
                return None
            if not (session.pending or self._beat_due or self._return_due):
                self.waits = False
                return None
            now = self._terms.clock()
            if (slabs := stream.slabs) is None:
                frame = session.next_write(now=now)
            else:
                frame = session.next_write(now=now, lend=slabs.lend)
                slabs.write(frame)
                self._return_due = False
            waiting = bool(session.cutting)
            if self._beat_due:
                frame.heartbeat = self._beat(stream, now)
        if waiting:
            self._on_loop(stream.lanes.wake)
        message = stream.frames.seal(pack_frame(frame))
        stream.messages_sent += 1
        stream.bytes_sent += len(message)
        return message

    def _beat(self, stream: Stream, now: float) -> Heartbeat | None:
        """Returns the beat that is due. Holds the lock."""
        self._beat_due = False
        if self._life is None:
            return None
        lag, busy, chunks = self._terms.counters.lag, self._terms.load(), stream.lanes.taken
        return self._life.beat(now, lag=lag, busy=busy, chunks=chunks)

    def moved(self) -> Moved:
        """Returns what went by all streams; a message may lack that was under way as one ended."""
        with self.lock:
            now = Moved() if self.stream is None else _moved_by(self.stream)
            sent, received = self.session.written, self.session.delivered
            return self._ended + now + Moved(envelopes_sent=sent, envelopes_received=received)

    def _on_loop(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Calls what only the loop may do, at once where this is it."""
        if self._terms.loop.is_loop_thread():
            function(*args)
        else:
            self._terms.loop.call_soon(function, *args)

    # On the loop.

    def opened(self, stream: Stream, pump: Pump, peer_received: int) -> None:
        """Takes a stream that is up, with the turn.

        Raises:
            DecodeError: What the peer says that it holds cannot be.
        """
        with self.lock:
            self.session.connection_made(peer_received)
            if self._life is not None:
                self._life.opened(self._terms.clock())
            self.waits = self._beat_due = True
            self._return_due = False
            self._chunks = 0, 0
            self.stream, self.pump = stream, pump

    def closed(self) -> tuple[Stream | None, Pump | None]:
        """Lets go of the stream: nothing that it brings is taken any more. Returns what it was."""
        with self.lock:
            stream, self.stream = self.stream, None
            pump, self.pump = self.pump, None
            if stream is not None:
                self._ended += _moved_by(stream)
                self.session.connection_lost()
        return stream, pump

    def start_life(self, lost_after: float) -> None:
        """Begins to judge whether the peer lives, at the first call; its bound may grow later."""
        with self.lock:
            if self._life is None:
                self._life = Liveness(self._terms.clock(), lost_after=lost_after)
            self._life.lost_after = lost_after

    @property
    def has_life(self) -> bool:
        """Whether that is judged."""
        return self._life is not None

    def answered(self) -> None:
        """Hears from the peer that it is there, and lets this side in later."""
        with self.lock:
            if self._life is not None:
                self._life.answered(self._terms.clock())

    def silence(self) -> float:
        """Returns the seconds since the last sign of life. Holds the lock."""
        return 0.0 if self._life is None else self._life.silence(self._terms.clock())

    def silence_words(self, now: float) -> str:
        """Says how long the peer was silent, and what it said last of what keeps it."""
        with self.lock:
            return "" if self._life is None else self._life.silence_words(now)

    def tick(self, now: float, *, judging: bool) -> bool:
        """Beats, where it is time; returns whether the peer is lost."""
        with self.lock:
            self._idle_frames.tick()
            life = self._life
            if life is None or not judging:
                return False
            if self.session.acknowledged > self._acknowledged:
                self._acknowledged = self.session.acknowledged
                life.acknowledged(now)
            if (stream := self.stream) is not None:
                self._look_at_lanes(stream.lanes, life, now)
            if life.tick(now):
                return True
            due = False
            if stream is not None:
                due = life.due(now)
                self._beat_due |= due
                self._return_due |= stream.slabs is not None and stream.slabs.due
                due |= self._return_due
            pump = self.turn() if due else None
        if pump is not None:
            pump.wake()
        return False

    def _look_at_lanes(self, lanes: Lanes, life: Liveness, now: float) -> None:
        """Takes it for life that chunks move. Holds the lock."""
        here, there = chunks = lanes.taken, lanes.known_taken
        if there > self._chunks[1]:
            life.acknowledged(now)
        if here > self._chunks[0]:
            life.arrived(now)
        self._chunks = chunks


def _take_lent(stream: Stream, frame: Frame) -> None:
    """Puts what lies in shared memory into the envelopes of a frame.

    Raises:
        DecodeError: There is none on this stream, or not what the frame says.
        CarrierClosedError: This process has no room for it.
    """
    if stream.slabs is None:
        raise DecodeError("a frame speaks of shared memory on a stream that has none")
    stream.slabs.read(frame)


def _moved_by(stream: Stream) -> Moved:
    moved = Moved(stream.bytes_sent, stream.bytes_taken, writes=stream.messages_sent)
    if (slabs := stream.slabs) is None:
        return moved
    return moved + Moved(slab_bytes_sent=slabs.bytes_sent, slab_bytes_received=slabs.bytes_received)


# ------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

# Carriers that come up and break before they bring one frame: an honest network does not do that
# ten times in a row, and dialling for ever would keep a processor busy.
FRUITLESS_CARRIERS = 10
# Sockets that broke: something in between does not like them, or alters what they carry.
MOST_BROKEN_SOCKETS = 5
# Seconds that lanes may stand still while the peer lives, if that is more than `lost_after`: at 512
# kbit/s two chunks of 1 MiB take half of it, and to dial again on a link that is full takes long.
LEAST_PATIENCE = 60.0
MOST_PATIENCE = 16  # times that: lanes that stood still get twice the time on the next stream


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
        self.last_break = 0.0, ""  # when a carrier broke, and how: likewise
        self.carriers = 0  # how many came up; tells a crossed dial from a redial
        self._terms = terms
        self._traffic = Traffic(terms, self._deliver, self._peer_left, self.reach_on_loop)
        self._session, self._session_lock = self._traffic.session, self._traffic.lock
        self._endpoints: tuple[str, ...] = ()  # this and the next two: under the lock
        self._loss: Loss | None = None
        self._left = False
        self._most_unread = terms.limits.unread_replies
        self._lost_after = terms.lost_after
        self._fruitless = 0  # carriers in a row that brought no frame
        self._fruitless_lanes = 0  # streams in a row whose lanes broke and had moved no chunk
        self._patience = max(terms.lost_after, LEAST_PATIENCE)  # with lanes that move nothing
        self._broken_sockets = 0  # streams and lanes over sockets of their own that broke
        self._peer_done = False  # it said goodbye, and waits for what is still under way here
        self._lost = False  # and the floor above knows
        self._cargo = Cargo(
            self._session, self._session_lock, terms.bulk, self._hand_over, self._cargo_lost
        )
        self._reach: Callable[[Connection], None] | None = None
        self.ended = asyncio.Event()

    # From any thread.

    def post(self, envelope: Envelope, *, rides: bool = False) -> None:
        """Queues an envelope; never blocks.

        Args:
            envelope: What is sent.
            rides: Whether it waits for the next write, whatever that is for, or for `flush`.

        Raises:
            WorkerLostError: The peer is lost, or this side has left it.
        """
        big = envelope.buffers or len(envelope.document) > LENT_BYTES
        if big and envelope.staged is None and not self._terms.loop.is_loop_thread():
            envelope = self.memory().stage(envelope)  # the loop copies nothing that is big
        with self._session_lock:
            if self._loss is not None or self._left:
                raise self._refusal()
            number = self._session.post(envelope, self._terms.clock())
            pump = None if rides or self._traffic.waits else self._traffic.turn()
            unread = self._session.replies_unread
        if pump is not None:
            pump.wake()
        elif not number % WRITTEN_TOGETHER:
            self._terms.reader.bursts.write()
        if unread > self._most_unread:
            error = DecodeError(f"it takes no replies ({unread} wait for it)")
            self._terms.loop.call_soon(self._broke_on_loop, error)

    def flush(self) -> None:
        """Has what was posted leave, if it has not."""
        with self._session_lock:
            pump = self._traffic.turn() if self._session.pending else None
        if pump is not None:
            pump.wake()

    def set_endpoints(self, endpoints: Sequence[str]) -> None:
        """Says where the peer listens, in the order to try."""
        with self._session_lock:
            self._endpoints = tuple(endpoints)
            waiting = self._traffic.waits
        if waiting:  # what was posted before found nobody to dial
            self.dial()

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
            if self._left or (self._loss is not None and not self._loss.unreachable):
                return
            self._loss = Loss(reason, self._traffic.silence(), left, fenced)
        self._terms.loop.call_soon(self._lost_on_loop)

    def statistics(self) -> SessionStatistics:
        """Returns the counts of the session."""
        with self._session_lock:
            return self._session.statistics()

    def moved(self) -> Moved:
        """Returns what its frames have moved."""
        return self._traffic.moved()

    def memory(self) -> Memory:
        """Returns the memory that the peer shares."""
        stream = self._traffic.stream
        return NO_MEMORY if stream is None or stream.slabs is None else stream.slabs

    # On the loop.

    @property
    def stream(self) -> Stream | None:
        """The carrier that is up now."""
        return self._traffic.stream

    @property
    def wants_carrier(self) -> bool:
        """Whether there is none, and one would be of use."""
        return self.stream is None and self.loss is None and not self.ended.is_set()

    @property
    def received_number(self) -> int:
        """The number up to which every envelope is held; to be told once no stream is up."""
        with self._session_lock:
            return self._session.received_number

    def on_reach(self, reach: Callable[[Connection], None]) -> None:
        """Says what dials: called on the loop when a carrier is wanted and an endpoint known."""
        self._reach = reach

    def reach_on_loop(self) -> None:
        """Dials, where an endpoint is known; else the peer has the usual time to do that."""
        if self._reach is None or not self.wants_carrier:
            return
        self._traffic.start_life(self._lost_after)
        if self.endpoints:
            self._reach(self)

    def lanes_of(self, way: Way) -> Lanes:
        """Returns what moves big parts beside a stream that is to be adopted.

        Args:
            way: Between whom, and where to.
        """
        if self._broken_sockets >= MOST_BROKEN_SOCKETS:
            way = way.without_socket()
        return Lanes(
            self._terms,
            self.peer,
            way,
            cargo=self._cargo,
            patience=self._patience,
            on_broken=self._lane_broken,
        )

    def adopt(self, stream: Stream, peer_received: int) -> None:
        """Takes a new carrier, in place of the present one.

        Raises:
            DecodeError: What the peer says that it holds cannot be; the carrier is not taken.
            CarrierClosedError: It has ended by now.
        """
        self.detach()
        pump = self._pump_of(stream)
        self._traffic.start_life(self._lost_after)
        try:
            self._traffic.opened(stream, pump, peer_received)
        except DecodeError:
            pump.let_go(None)
            raise
        self._peer_done = False
        self.carriers += 1
        self._terms.counters.connections += stream.carrier.blocking is None  # else it has moved
        logger.info("connected to %s by %s", self.peer.name, stream.carrier.description)
        pump.start(stream.preamble)

    def _pump_of(self, stream: Stream) -> Pump:
        frames = StreamFrames(
            next_message=partial(self._traffic.next_message, stream),
            ending=lambda: self._peer_done,
            written=partial(self.written, stream),
            take=partial(self._traffic.take, stream),
            failed=partial(self.failed, stream),
        )
        terms = self._terms
        if (direct := stream.carrier.direct) is None:
            return TaskPump(stream.carrier, frames, terms.loop, terms.spawn)
        if stream.slabs is not None:
            stream.slabs.on_moved(terms.reader.moved)
        return SocketPump(direct, frames, terms.loop, terms.reader)

    def detach(self, farewell: bytes = b"") -> None:
        """Lets go of the present carrier, with a last message for it, and reads nothing of it any more."""
        self.set_aside()(farewell)

    def set_aside(self) -> Callable[[bytes], None]:
        """Reads nothing more of the present carrier; returns what lets go of it; see `detach`."""
        if (stream := self._traffic.stream) is not None and stream.slabs is not None:
            # First: what a reader has in its hands comes once more, as pieces of memory used for nothing else.
            stream.slabs.close()
        stream, pump = self._traffic.closed()
        if stream is None or pump is None:
            return lambda last: None
        stream.lanes.let_go()
        return lambda last: pump.let_go(partial(stream.frames.seal, last) if last else None)

    def tick(self, now: float) -> None:
        """Beats and judges; called by the exchange several times per beat."""
        judging = not self.ended.is_set() and self.loss is None
        lost, stream = self._traffic.tick(now, judging=judging), self.stream
        if lost:
            self.lose(self._silence_words(now))
        elif judging and stream is not None and stream.lanes.stand_still(now):
            most = MOST_PATIENCE * max(self._terms.lost_after, LEAST_PATIENCE)
            self._patience = min(2 * self._patience, most)
            self.socket_broke(MOST_BROKEN_SOCKETS * stream.lanes.by_socket)
            self._broken(stream, CarrierClosedError("its lanes stand still"))

    def spare_on_loop(self, seconds: float) -> None:
        """Has the peer given up after so many seconds of silence, if that is later."""
        self._lost_after = max(self._lost_after, seconds)
        if self._traffic.has_life:
            self._traffic.start_life(self._lost_after)

    def answered_on_loop(self) -> None:
        """Hears from the peer that it is there, and lets this side in later."""
        self._traffic.answered()

    def leave_on_loop(self, reason: str) -> None:
        """Has a goodbye follow what was posted; `ended` is set when the peer has it all."""
        with self._session_lock:
            cut = self._loss is not None and self._loss.unreachable
            if (self._loss is not None and not cut) or self._left:
                return
            self._left = True
            self._session.leave(reason)
            unreachable = self.carriers == 0 or not self._endpoints
            idle = self.stream is None and self._session.flushed and unreachable
        if idle or cut:  # it never knew of this side, or will find out when it dials
            self.end()
        elif self.stream is None:
            self.reach_on_loop()
        else:
            self._traffic.stir()

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
        if self.stream is not None and self.loss is None:
            self.stream.record_cut_off(self._terms.audit, self.peer, error)
        self.gone_on_loop(f"it broke the protocol: {error}")

    def _refusal(self) -> WorkerLostError:
        """Returns why nothing is posted any more. Holds the lock."""
        loss = Loss("this worker has left it", 0.0) if self._loss is None else self._loss
        return loss.error(self.peer)

    def _lost_on_loop(self) -> None:
        if (error := self.loss) is None or self.ended.is_set():
            return
        self.end()
        self._lost = True
        logger.debug("%s", error)
        self._terms.receiver.on_lost(self.peer, error)

    def _silence_words(self, now: float) -> str:
        words, ever = self._traffic.silence_words(now), self.carriers > 0
        if self.stream is None:
            words += without_carrier(self.endpoints, self.last_failure, ever=ever)
            words += breakage(*self.last_break, now)
        return words

    def written(self, stream: Stream) -> None:
        """Hears that a message has left, perhaps the last one of both sides."""
        if self._peer_done:
            self._terms.loop.call_soon(self._end_if_said, stream)

    def failed(self, stream: Stream, error: BaseException) -> None:
        """Hears that a stream can be read or written no more; on the loop."""
        if self.stream is not stream:
            return
        if isinstance(error, DecodeError):
            self._broke_on_loop(error)
        elif isinstance(error, Exception):
            stream.record_cut_off(self._terms.audit, self.peer, error)
            if stream.carrier.blocking is not None:
                self.socket_broke()
            self._broken(stream, error)

    def socket_broke(self, times: int = 1) -> None:
        """Hears that a stream, or a lane, over a socket of its own broke, or did not come up."""
        had, self._broken_sockets = self._broken_sockets, self._broken_sockets + times
        if had < MOST_BROKEN_SOCKETS <= self._broken_sockets:  # below: a handler may block
            words = "too many sockets to %s broke: all goes over gRPC from now on"
            self._terms.bulk.run(logger.warning, words, self.peer.name)

    def _deliver(self, complete: Sequence[Envelope]) -> None:
        """Hands envelopes over: here what any thread may take, all others on the loop."""
        terms, peer, on_envelope = self._terms, self.peer, self._terms.receiver.on_envelope
        for envelope in complete:
            if envelope.reply or envelope.kind in terms.anywhere or terms.loop.is_loop_thread():
                on_envelope(peer, envelope)
            else:
                terms.loop.call_soon(self._deliver_late, envelope)

    def _deliver_late(self, envelope: Envelope) -> None:
        if not self._lost:
            self._terms.receiver.on_envelope(self.peer, envelope)

    def _hand_over(self, complete: Sequence[Envelope]) -> None:
        """Takes envelopes that came by lanes, and has the receipt written that is due for them."""
        self._deliver(complete)
        if self.stream is not None:
            self.flush()

    def _cargo_lost(self, error: BaseException) -> None:
        words = f"an envelope from it could not be put together: {error!r}"
        self._terms.loop.call_soon(self.gone_on_loop, words)

    def _peer_left(self, stream: Stream, goodbye: Goodbye) -> None:
        """Answers a goodbye, so that the peer knows that all it said was heard.

        If this side leaves, too, its own goodbye is the answer, behind what is still under way.
        """
        if self.stream is not stream:
            return
        with self._session_lock:
            answered, left = self._session.goodbye_written, self._left
            waits = left and not answered
            self._peer_done |= waits
            last = Frame(receipt=self._session.received_number, goodbye=Goodbye("answer"))
        if waits:
            self._traffic.stir()
            return
        self.detach(farewell=b"" if answered else pack_frame(last))
        if left:
            self.end()
        else:
            self.lose(escaped(goodbye.reason) or "it left", left=True)

    def _end_if_said(self, stream: Stream) -> None:
        """Ends once both sides have said goodbye, this one last."""
        with self._session_lock:
            said = self._session.goodbye_written
        if self._peer_done and said and self.stream is stream:
            self.end()

    def _lane_broken(self, lanes: Lanes, error: Exception) -> None:
        """Goes on without a stream of which a lane broke, or never came up.

        Once this side has said goodbye it needs no lane: whoever answers lets go of them first. A
        peer that still sends notices on its own end.
        """
        stream = self.stream
        if stream is None or stream.lanes is not lanes:
            return
        with self._session_lock:
            done = self._session.goodbye_written
        self._fruitless_lanes = 0 if lanes.moved else self._fruitless_lanes + 1
        self.socket_broke(int(lanes.by_socket))
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
        if self.stream is not stream:
            return
        logger.debug("lost the carrier to %s: %s", self.peer.name, error)
        self.last_break = self._terms.clock(), str(error)
        self.detach()
        self._fruitless = 1 if stream.frames_taken else self._fruitless + 1
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
