"""What goes both ways between two workers, as any thread may move it: a session under its lock.

The writer's turn belongs to one thread at a time: it is taken with `turn`, by whoever finds that
nobody has it, and given back when `next_message` returns None. Where there is no stream the turn is
taken all the same, and the next stream begins with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVarTuple, final

from telegrad.errors import DecodeError
from telegrad.transport.bulk_lanes import Lanes
from telegrad.transport.direct_pump import DirectPump
from telegrad.transport.idle_frames import IdleFrames
from telegrad.transport.liveness import Liveness
from telegrad.transport.pump import Pump
from telegrad.transport.session import Session
from telegrad.transport.statistics import Moved
from telegrad.transport.stream import Stream
from telegrad.transport.terms import Terms
from telegrad.wire import Envelope, Frame, Goodbye, Heartbeat, pack_frame, unpack_frame

__all__ = ["Traffic"]

Ts = TypeVarTuple("Ts")


@final
class Traffic:
    """One session, the stream that carries it now, and the signs of life on that.

    Attributes:
        lock: Guards the session and all that is here; never held across a wait.
        session: The session.
        stream: The carrier that is up now; set on the loop.
        pump: What moves its messages.
        direct: The same, where threads do.
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
        self.session = Session(terms.limits.received, terms.slabs.spare.take)
        self.stream: Stream | None = None
        self.pump: Pump | None = None
        self.direct: DirectPump | None = None
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
            self.direct = pump if isinstance(pump, DirectPump) else None

    def closed(self) -> tuple[Stream | None, Pump | None]:
        """Lets go of the stream: nothing that it brings is taken any more. Returns what it was."""
        with self.lock:
            stream, self.stream = self.stream, None
            pump, self.pump, self.direct = self.pump, None, None
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
