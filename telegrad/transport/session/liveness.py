"""Liveness of a peer, by questions and answers; and a limit on frames with nothing new. Pure.

    here                                there
     question(sent=7) ──────────────────▶ answers at once, even if its own next question is not due
                  ◀────────────────────── beat(sent=0, echo=7)
     7 was heard: alive at this moment, and the way there and back works

Each side asks every fifth of the bound. An answer is also a question if the answerer's own next
question is nearly due. A receipt for something new counts as an answer. So does news of chunks that
the peer took from the lanes: both are heard even while a beat is queued behind much else.

A peer is lost when a question stayed without an answer for `lost_after` seconds. Time counts from
the moment the question was sent or due, so a delay in asking is never held against the peer. A slow
peer or a slow judge must not be mistaken for a dead peer:

L1. The lag of the peer's loop, as the peer reported it, is added to the bound: once for each turn
    of the loop that an answer takes, and at most once the bound in all.
L2. A judge that runs late must not count time in which it could not read. Of the time between two
    ticks at most a twentieth of the bound is counted. So the judge has run at least twenty times
    since it asked, and has read what came in, before it gives a peer up.
L3. After a late tick the judge spares the peer for some ticks, even at the very end of the bound:
    what has arrived meanwhile is read first.
L4. Bytes that merely arrive prove little, as they may have been queued for long. But a link that
    brings chunks is not cut, and an answer may take as long as the data that fills the link.
    While chunks come, the bound is doubled, once.

So a peer is never given up, however late the judge is, if its loop handles every message within
X seconds, the network delivers within Y, and 3 X + 2 Y < lost_after. A fifth of the bound for each
is enough. Once the peer has reported its lag, X may be 3/10 of the bound, and Y half of it. A
punctual judge gives up a dead peer after 6/5 of the bound. The time is always an argument.
"""

from __future__ import annotations

import math
from typing import final

from telegrad.errors import DecodeError
from telegrad.wire import Heartbeat

BEATS_PER_BOUND = 5  # one lost or late beat must not matter; 1 beat/s and peer at the default
LEAST_TICKS = 20  # before a peer is given up; reading a message takes two turns of the loop
# A message is taken from gRPC in one turn of the loop, read in the next, answered in the third.
ANSWER_TURNS = 3
# After a late tick: 0.2 s with a bound of 1 s, 1 s with one of 10. A dial takes two round trips.
SPARED_TICKS = 4
MIN_STEP = 1e-6  # seconds; far above the resolution of a float at any uptime


@final
class Liveness:
    """The knowledge of one end about the life of the other end.

    Args:
        now: The time at which the session opened; the peer was alive then.
        lost_after: Seconds without an answer after which the peer is lost.
    """

    def __init__(self, now: float, *, lost_after: float) -> None:
        self.interval = lost_after / BEATS_PER_BOUND
        self.last_echo = now
        self.peer_lag = 0.0
        self.peer_busy = 0
        self.lost_after = lost_after  # may grow later
        self._sent = 0.0
        self._echoed = 0.0
        self._heard = 0.0
        self._owes = False
        self._next_beat = now
        self._waited: float | None = None  # seconds waited; None while no question is open
        self._arrived = -math.inf  # the time at which the last chunk came
        self._last_tick = now
        self._spared = 0  # ticks before it judges again

    @property
    def owes(self) -> bool:
        """True if the peer has asked and was not answered yet."""
        return self._owes

    def due(self, now: float) -> bool:
        """Returns True if it is time for the next question."""
        return now >= self._next_beat

    def beat(self, now: float, *, lag: float = 0.0, busy: int = 0, chunks: int = 0) -> Heartbeat:
        """Returns the beat to write now: a question, an answer, or both.

        The `sent` of a question grows even while the clock stands still. A mere answer has `sent` 0
        and expects no answer: otherwise two peers would answer each other for ever.
        """
        sent = 0.0
        if not self._owes or now >= self._next_beat - self.interval / 2:
            sent = self._sent = max(now, self._sent + MIN_STEP)
            self._next_beat = now + self.interval
            self._waited = self._waited or 0.0
        self._owes = False
        return Heartbeat(sent, self._heard, lag, busy, chunks)

    def heard(self, beat: Heartbeat, now: float) -> None:
        """Takes a beat from the peer."""
        if beat.sent:
            self._heard = beat.sent
            self._owes = True
        self.peer_lag, self.peer_busy = max(0.0, beat.lag), beat.busy
        if self._echoed < beat.echo <= self._sent:
            self._echoed = beat.echo
            self.last_echo = now
            # A later question may still be open. Its time begins anew: the peer lived when it
            # answered the earlier one.
            self._waited = None if beat.echo >= self._sent else 0.0

    def acknowledged(self, now: float) -> None:
        """Records that the peer acknowledged something new, or took chunks that were new to it."""
        self.last_echo = max(self.last_echo, now)
        self._waited = None if self._waited is None else 0.0

    def arrived(self, now: float) -> None:
        """Records that chunks came from the peer; they may have been sent long ago."""
        self._arrived = now

    def opened(self, now: float) -> None:
        """Records that the peer proved itself on a new carrier, which is a sign of life."""
        self.last_echo = max(self.last_echo, now)
        self._waited = None
        self._owes = False  # a question from the last carrier is asked again on this one
        self._next_beat = now

    def answered(self, now: float) -> None:
        """Records that the peer answered a dial and will let this side in later."""
        self.last_echo = max(self.last_echo, now)
        self._waited = None

    def silence(self, now: float) -> float:
        """Returns the seconds since the last sign of life."""
        return max(0.0, now - self.last_echo)

    def silence_words(self, now: float) -> str:
        """Returns words on how long the peer was silent, and its last report of its own load."""
        words = f"silent for {self.silence(now):.1f} s"
        if self.peer_lag > 0.1 or self.peer_busy:
            words += f" (it last said: loop {self.peer_lag:.1f} s late, "
            words += f"{self.peer_busy} calls being served)"
        return words

    def tick(self, now: float) -> bool:
        """Returns True if the peer is lost; must be called several times per interval."""
        gap, self._last_tick = max(0.0, now - self._last_tick), now
        longest = self.lost_after / LEAST_TICKS
        late = gap > 2 * longest and not self._spared
        self._spared = SPARED_TICKS if late else max(0, self._spared - 1)
        if self._waited is not None:
            self._waited += min(gap, longest)
        elif self.due(now):
            self._waited = 0.0
        return not self._spared and (self._waited or 0.0) > self._bound(now)

    def _bound(self, now: float) -> float:
        slow = min(ANSWER_TURNS * self.peer_lag, self.lost_after)
        comes = now - self._arrived < self.lost_after
        return self.lost_after + (self.lost_after if comes else slow)


# -- frames that bring nothing new; honest peers write a few a second ----------------------------

# A carrier repeats frames after a break. A thousand cost the loop 20 ms.
MOST_IDLE_FRAMES = 1000
# Between two ticks of the exchange, of which there are four a heartbeat, an honest peer writes a
# beat and its echo.
IDLE_FRAMES_PER_TICK = 10


@final
class IdleFrames:
    """A counter of frames from one peer that bring nothing new; raises an error at a flood."""

    def __init__(self) -> None:
        self._news = 0
        self._idle = 0

    def take(self, news: int) -> None:
        """Counts a frame.

        Args:
            news: A number that has grown if the frame brought anything.

        Raises:
            DecodeError: Too many frames brought nothing new.
        """
        self._idle = self._idle + 1 if news == self._news else 0
        self._news = news
        if self._idle > MOST_IDLE_FRAMES:
            raise DecodeError(f"a flood: {self._idle} frames with nothing new in them")

    def tick(self) -> None:
        """Forgets as many frames as an honest peer may have written since the last tick."""
        # A few and not all: on a busy machine an attacker never wrote a thousand between two ticks,
        # and was read until he counted as silent.
        self._idle = max(self._idle - IDLE_FRAMES_PER_TICK, 0)


# -- both, for one connection --------------------------------------------------------------------


@final
class Pulse:
    """The judge of a peer's liveness; it starts when this side first wants to reach the peer.

    Attributes:
        idle_frames: The counter of the peer's frames that brought nothing new.
        beat_due: True if the next write should carry a beat.
    """

    def __init__(self, lost_after: float) -> None:
        self.idle_frames = IdleFrames()
        self.beat_due = False
        self._lost_after = lost_after
        self._life: Liveness | None = None
        self._acknowledged = 0  # the number up to which the peer had receipts at the last tick
        self._chunks = 0, 0  # taken by both ends from the lanes of this stream, at the last tick

    def begin(self, now: float) -> Liveness:
        """Starts to judge, at the first call."""
        if self._life is None:
            self._life = Liveness(now, lost_after=self._lost_after)
        return self._life

    def spare(self, lost_after: float) -> None:
        """Takes a longer bound; a shorter one changes nothing."""
        self._lost_after = max(self._lost_after, lost_after)
        if self._life is not None:
            self._life.lost_after = self._lost_after

    def opened(self, now: float) -> None:
        """Records that the peer proved itself on a new stream, which begins with a beat."""
        self.beat_due = True
        self._chunks = 0, 0
        self.begin(now).opened(now)

    def answered(self, now: float) -> None:
        """Records that the peer answered a dial, and lets this side in later."""
        if self._life is not None:
            self._life.answered(now)

    def heard(self, beat: Heartbeat, now: float) -> None:
        """Takes a beat from the peer."""
        if self._life is not None:
            self._life.heard(beat, now)
            self.beat_due |= self._life.owes

    def beat(self, now: float, *, lag: float, busy: int, chunks: int) -> Heartbeat | None:
        """Returns the beat that is due; None before it judges."""
        self.beat_due = False
        if self._life is None:
            return None
        return self._life.beat(now, lag=lag, busy=busy, chunks=chunks)

    def tick(self, now: float, acknowledged: int, chunks: tuple[int, int] | None) -> bool:
        """Returns True if the peer is lost; must be called several times per beat.

        Args:
            now: The time.
            acknowledged: The number up to which the peer has receipts.
            chunks: The numbers of chunks that were taken from the stream's lanes, here and there;
                None for no stream.
        """
        if (life := self._life) is None:
            return False
        if acknowledged > self._acknowledged:
            self._acknowledged = acknowledged
            life.acknowledged(now)
        if chunks is not None:
            if chunks[1] > self._chunks[1]:
                life.acknowledged(now)
            if chunks[0] > self._chunks[0]:
                life.arrived(now)
            self._chunks = chunks
        if life.tick(now):
            return True
        self.beat_due |= chunks is not None and life.due(now)
        return False

    def silence(self, now: float) -> float:
        """Returns the seconds since the last sign of life."""
        return 0.0 if self._life is None else self._life.silence(now)

    def silence_words(self, now: float) -> str:
        """Returns words on how long the peer was silent, and its last report of its own load."""
        return "" if self._life is None else self._life.silence_words(now)
