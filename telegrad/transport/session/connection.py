"""One peer: the session with it, in any thread, over the carrier that is up now.

             post() from any thread                     on_envelope, on the loop
                  │                                           ▲
      ┌───────────▼───────────────────────────────────────────┴───────┐
      │ Session, under the lock (pure: numbers, receipts, pieces)     │
      └───────────┬──────────────────────────▲────────────────▲───────┘
            next_message                    take          Cargo: pieces, both ways
                  └── Pump ── Stream: carrier + tags ── + ── Lanes

Pumps move frames: two tasks on the loop, or, where the carrier lets them, the threads that post and
wait (`io.reader`). The writer's turn belongs to one thread at a time. A thread that finds it free
takes it, and it ends when `next_message` returns None. Where there is no stream the turn is taken
all the same, and the next stream begins with it. Streams come and go by `Carriers`, on the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol, final

from telegrad.critical import critical
from telegrad.errors import DecodeError, EncodeError, WorkerLostError
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.io.pump import Pump
from telegrad.transport.session.liveness import Pulse
from telegrad.transport.session.session import Session, SessionStatistics
from telegrad.transport.session.stream import Loss, Stream
from telegrad.transport.session.terms import ExchangeStatistics, Terms
from telegrad.types import WorkerInfo
from telegrad.wire import (
    LENT_BYTES,
    Envelope,
    pack_frame,
    unpack_frame,
)

# A burst is written after so many posts, at 15 us each after half a millisecond: the other end has
# something to do while more are posted.
WRITTEN_TOGETHER = 32


class Keeper(Protocol):
    """Keeps a connection's carriers up; called on the loop, except for `wake`."""

    def wake(self) -> None:
        """Gets a stream, as there is something to write and none is up; from any thread."""

    def peer_left(self, stream: Stream, reason: str) -> None:
        """Handles the goodbye of the peer, which gives its reason in words."""

    def broke_protocol(self, error: DecodeError) -> None:
        """Gives up a peer that broke the protocol."""

    def gone(self, reason: str, *, fenced: bool = False) -> None:
        """Gives up a peer with which the session cannot go on."""

    def lost(self) -> None:
        """Ends the carriers, since the peer was given up."""


@final
class Connection:
    """The promise towards one peer: every envelope is handed over exactly once, or it is lost.

    Any thread calls its methods, except those that are marked as the loop's.

    Attributes:
        lock: Guards the next two and the private attributes; never held across a wait.
        session: The numbers of the envelopes that were posted and taken.
        pulse: The judge of the peer's liveness.
        cargo: The pieces of big envelopes, for lanes.
        stream: The carrier that is up now; set on the loop.
        waits: True if the writer's turn is taken: there may be something to write.
    """

    def __init__(self, peer: WorkerInfo, terms: Terms, keeper: Keeper) -> None:
        self.peer = peer
        self.lock = threading.Lock()
        self.session = Session(terms.limits.received, terms.receiver.memory)
        self.pulse = Pulse(terms.lost_after)
        self.cargo = Cargo(self.session, self.lock, self._take_from_lanes)
        self.stream: Stream | None = None
        self.waits = False
        self._pump: Pump | Keeper = keeper  # woken by the thread that takes the writer's turn
        self._terms = terms
        self._keeper = keeper
        self._moved_before = ExchangeStatistics()  # by the streams before this one
        self._loss: Loss | None = None
        self._left = False
        self._told = False  # True once the layer above knows of the loss

    def post(self, envelope: Envelope, *, rides: bool = False) -> None:
        """Queues an envelope; never blocks.

        Args:
            envelope: The envelope to send.
            rides: True if it waits for the next write, for whatever reason that happens, or for
                `flush`.

        Raises:
            WorkerLostError: The peer is lost, or this side has left it.
        """
        big = len(envelope.document) > LENT_BYTES or len(envelope.externals) > LENT_BYTES
        for buffer in envelope.buffers:
            size = buffer.nbytes if type(buffer) is memoryview else len(buffer)
            big = big or size > LENT_BYTES
        if big and envelope.staged is None and not self._terms.loop.is_loop_thread():
            stream = self.stream
            if stream is not None:
                envelope = stream.memory.stage(envelope)  # the loop copies no big part
        session = self.session
        try:
            with critical.section:  # code that interrupts this may not wait while it has a turn
                with self.lock:
                    if self._loss is not None or self._left:
                        raise self._refusal()
                    number = session.post(envelope, self._terms.clock())
                    # The writer's turn is given once. A thread that finds it taken may leave: the
                    # thread that has it looks for more, under this lock, before it gives it back
                    # (`next_message`).
                    turn = not rides and not self.waits
                    if turn:
                        self.waits, pump = True, self._pump
                    unread = session.replies_unread
                if turn:
                    pump.wake()
                elif not number % WRITTEN_TOGETHER:
                    self._terms.reader.bursts.write()
        except (WorkerLostError, EncodeError):  # refused, before it had a turn
            raise
        except BaseException:  # a signal handler's: this thread may have had a turn, or several
            self._terms.loop.call_soon(self._resume)
            raise
        # Each reply is kept until its receipt: a peer that calls and takes no replies would fill
        # the memory of this worker.
        if unread > self._terms.limits.unread_replies:
            error = DecodeError(f"it takes no replies ({unread} wait for it)")
            self._terms.loop.call_soon(self._keeper.broke_protocol, error)

    def flush(self) -> None:
        """Writes the envelopes that wait, unless a thread does that already."""
        try:
            with critical.section:
                with self.lock:
                    stream, due = self.stream, self.session.pending
                    due |= stream is not None and (self.pulse.beat_due or stream.news_due)
                    turn, pump = due and not self.waits, self._pump
                    self.waits |= turn
                if turn:
                    pump.wake()
        except BaseException:
            self._terms.loop.call_soon(self._resume)
            raise

    def cut(self, reason: str) -> None:
        """Declares that neither side can dial the other; `on_lost` does not follow.

        Args:
            reason: The remedy, in words, for the caller of `post`.
        """
        with critical.section, self.lock:
            if self._loss is None and not self._left:
                self._loss = Loss(reason, 0.0, unreachable=True)

    def lose(self, reason: str, *, left: bool = False, fenced: bool = False) -> None:
        """Gives the peer up, for good; `on_lost` follows on the loop. Idempotent.

        Args:
            reason: The reason, in words.
            left: True if the peer said goodbye.
            fenced: True if the peer had given up this worker first.
        """
        with critical.section, self.lock:
            if self._left or (self._loss is not None and not self._loss.unreachable):
                return
            silence = self.pulse.silence(self._terms.clock())
            self._loss = Loss(reason, silence, left, fenced)
        self._terms.loop.call_soon(self._keeper.lost)

    @property
    def loss(self) -> WorkerLostError | None:
        """A new exception that says why the peer is lost; None while it is not."""
        with critical.section, self.lock:
            return None if self._loss is None else self._loss.error(self.peer)

    @property
    def left(self) -> bool:
        """True if this side has said goodbye, or is about to."""
        return self._left

    @property
    def flushed(self) -> bool:
        """True if the peer has all that was posted."""
        with critical.section, self.lock:
            return self.session.flushed

    def statistics(self) -> SessionStatistics:
        """Returns the counts of the session."""
        with critical.section, self.lock:
            return self.session.statistics()

    def moved(self) -> ExchangeStatistics:
        """Returns the totals of all streams; may lack a message that was under way as one ended."""
        with critical.section, self.lock:
            sent, received = self.session.written, self.session.delivered
            moved = ExchangeStatistics(envelopes_sent=sent, envelopes_received=received)
            moved += self._moved_before
            return moved if self.stream is None else moved + self.stream.moved()

    def _refusal(self) -> WorkerLostError:
        """Returns the error for a post that is refused. Holds the lock."""
        loss = Loss("this worker has left it", 0.0) if self._loss is None else self._loss
        return loss.error(self.peer)

    # In the thread that reads a stream, or has the writer's turn.

    def take(self, stream: Stream, message: bytes) -> bool:
        """Takes a message of a stream, unless the stream was let go meanwhile.

        Returns:
            True if the message brought a request, and no reply behind that.

        Raises:
            BadTagError: The message's tag is wrong.
            DecodeError: The message breaks the protocol.
        """
        stream.messages_taken += 1
        stream.bytes_taken += len(message)
        frame = unpack_frame(stream.frames.open(message), self._terms.limits.received)
        session, beat, pulse = self.session, frame.heartbeat, self.pulse
        try:
            if frame.lending is not None:
                stream.take_lent(frame)
            with critical.section, self.lock:
                # `closed` has taken the stream away, and the peer may know the number that was held
                # then: what the stream brings now comes again on the next one.
                if self.stream is not stream:
                    return False
                news = session.news
                complete = session.received(frame)
                if session.news == news and not frame.laneless:
                    pulse.idle_frames.take(news)
                if beat is not None:
                    pulse.heard(beat, self._terms.clock())
                if frame.lending is not None:
                    stream.look_for_news()
                if frame.laneless is not None or stream.laneless:
                    stream.look_for_lanes(frame)
                due = session.pending or pulse.beat_due or stream.news_due
                turn, pump = due and not self.waits and frame.goodbye is None, self._pump
                self.waits |= turn
        except BaseException:
            stream.stop_lending()  # the frame's parts will come again, from the same memory
            raise
        stream.frames_taken += 1
        if frame.awaited or beat is not None:
            stream.lanes.heard(frame)
        if frame.laneless:
            stream.lanes.take_carried(frame.laneless)
        # Without the lock, as the receiver may post at once; and before a goodbye of the same
        # frame.
        if complete:
            self._hand_over(complete)
        if frame.goodbye is not None:
            self._terms.loop.call(self._keeper.peer_left, stream, frame.goodbye)
        if turn:
            pump.wake()
        return bool(complete) and not complete[-1].reply

    def next_message(self, stream: Stream) -> bytes | None:
        """Returns the next message to write on a stream; None ends the turn."""
        session, pulse = self.session, self.pulse
        with critical.section, self.lock:
            if self.stream is not stream:
                return None
            if not (session.pending or pulse.beat_due or stream.news_due):
                # Under the lock of `post`: an envelope that comes after this look finds the turn
                # free.
                self.waits = False
                return None
            now = self._terms.clock()
            slabs = stream.slabs
            lend = None if slabs is None else slabs.lend
            carry = stream.lanes.stride if stream.laneless else 0
            frame = session.next_write(now=now, lend=lend, carry=carry)
            if slabs is not None:
                slabs.write(frame)
            waiting = bool(session.cutting)
            stream.news_due = waiting and carry > 0
            if carry and stream.dialled and frame.laneless is None:
                frame.laneless = b""
            if pulse.beat_due:
                lag, busy = self._terms.counters.lag, self._terms.receiver.load()
                frame.heartbeat = pulse.beat(now, lag=lag, busy=busy, chunks=stream.lanes.taken)
        if waiting:
            stream.lanes.wake()
        if frame.laneless:
            stream.lanes.carried(frame.laneless)
        message = stream.frames.seal(pack_frame(frame))
        stream.messages_sent += 1
        stream.bytes_sent += len(message)
        return message

    def _hand_over(self, complete: Sequence[Envelope]) -> None:
        """Hands envelopes over: here those that any thread may take, all others on the loop.

        One that lacks parts, for lack of memory, loses the peer if the receiver cannot do without.
        """
        receiver, peer, loop = self._terms.receiver, self.peer, self._terms.loop
        for envelope in complete:
            if envelope.failure is not None and not receiver.takes_failed(envelope):
                loop.call_soon(self._keeper.gone, str(envelope.failure))
            elif envelope.reply or envelope.kind in receiver.anywhere or loop.is_loop_thread():
                receiver.on_envelope(peer, envelope)
            else:
                loop.call_soon(self._hand_over_late, envelope)

    def _hand_over_late(self, envelope: Envelope) -> None:
        # The peer may have been lost since this was put off.
        if not self._told:
            self._terms.receiver.on_envelope(self.peer, envelope)

    def _take_from_lanes(self, complete: Sequence[Envelope]) -> None:
        """Takes envelopes that came by lanes, and writes the receipt that is due for them."""
        self._hand_over(complete)
        if self.stream is not None:
            self.flush()

    # On the loop.

    def _resume(self) -> None:
        """Goes on for a thread that an exception has taken out of writing."""
        if self.stream is None:
            self._keeper.wake()
        else:
            self.stream.pump.resume()
        self._terms.reader.resume()

    def opened(self, stream: Stream, peer_received: int) -> None:
        """Takes a stream that is up, with the writer's turn.

        Raises:
            DecodeError: The number that the peer says it holds is impossible.
        """
        with critical.section, self.lock:
            self.session.connection_made(peer_received)
            self.pulse.opened(self._terms.clock())
            self.waits = True
            self.stream, self._pump = stream, stream.pump

    def closed(self) -> Stream | None:
        """Lets go of the stream and returns it: nothing that it brings is taken any more."""
        with critical.section, self.lock:
            stream, self.stream = self.stream, None
            # A thread that posts from here on makes the loop dial. A turn that was taken is lost
            # with the stream; the next stream begins with it (`opened`).
            self._pump = self._keeper
            if stream is not None:
                self._moved_before += stream.moved()
                self.session.connection_lost()
        return stream

    def leave(self, reason: str, *, now: bool = False) -> bool:
        """Sends a goodbye behind what was posted; returns True if this side had not left before.

        Args:
            reason: The reason, in words.
            now: True if the goodbye overtakes what was posted; this side may have left before.
        """
        with critical.section, self.lock:
            if (self._left and not now) or (self._loss is not None and not self._loss.unreachable):
                return False
            self._left = True
            self.session.leave(reason, now=now)
        return True

    def tell_loss(self) -> None:
        """Tells the layer above that the peer is lost; hands nothing of it over after that."""
        if (error := self.loss) is not None:
            self._told = True
            self._terms.receiver.on_lost(self.peer, error)
