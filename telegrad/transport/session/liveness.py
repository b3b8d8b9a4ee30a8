"""Whether a peer lives: questions that have to be answered, and only an answer counts as life.

    here                                there
     question(sent=7) ──────────────────▶ answers at once, whenever its own next question is due
                  ◀────────────────────── beat(sent=0, echo=7)
     7 was heard: alive at this moment, and the way there and back works

Every fifth of the bound each side asks; an answer asks, too, when the answerer's own next question
is near. A receipt for something new is an answer, too, and so is news of chunks that the peer took
from the lanes: they are heard even while a beat is queued behind much else.

A peer is lost when a question stayed without an answer for `lost_after` seconds, counted from when
it was asked or due, so that waiting to ask is never held against the peer. Slow is not dead, on either side:

L1. What the peer said about the lag of its loop is added to the bound, once for each turn of the
    loop that an answer takes, up to once the bound.
L2. A judge that runs late must not count time in which it could not read: whatever time passed
    between two ticks, a twentieth of the bound is counted at most. So it has run at least twenty
    times since it asked before it gives anyone up, and read what came in.
L3. After a late tick the peer is spared for some more, also at the very end of the bound: what has
    arrived meanwhile is read first.
L4. Bytes that merely arrive prove little: they may have been queued for long. But a link that brings
    chunks is not cut, and an answer may take as long as what fills it: while they come the bound
    counts twice, once.

By this a peer is never given up, however late the judge is, if its loop takes up whatever comes
within X seconds and the network delivers within Y, with 3 X + 2 Y < lost_after: a fifth of the
bound for each will do. Once it has said that it is so late, X may be 3/10 of the bound, and Y a
half. A judge that is punctual gives up who is dead after 6/5 of the bound. Pure: the time is
always an argument.
"""

from __future__ import annotations

import math
from typing import final

from telegrad.errors import DecodeError
from telegrad.wire import Heartbeat

__all__ = [
    "ANSWER_TURNS",
    "BEATS_PER_BOUND",
    "LEAST_TICKS",
    "IdleFrames",
    "Liveness",
]


BEATS_PER_BOUND = 5  # one lost or late beat must not matter; 1 beat/s and peer at the default
LEAST_TICKS = 20  # before a peer is given up; reading a message takes two turns of the loop
# A message is taken from gRPC in one turn of the loop, read in the next, answered in the third.
ANSWER_TURNS = 3
# After a late one; 0.2 s with a bound of 1 s, 1 s with one of 10: a dial takes two round trips.
SPARED_TICKS = 4
MIN_STEP = 1e-6  # seconds; far above the resolution of a float at any uptime


@final
class Liveness:
    """What one end knows of the other end's life.

    Args:
        now: The time at which the session opened; the peer was alive then.
        lost_after: Seconds without an answer after which it is lost.
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
        self._waited: float | None = None  # for an answer; None while nothing is asked
        self._arrived = -math.inf  # when a chunk came last
        self._last_tick = now
        self._spared = 0  # ticks before it judges again

    @property
    def owes(self) -> bool:
        """Whether the peer has asked and was not answered yet."""
        return self._owes

    def due(self, now: float) -> bool:
        """Returns whether it is time for the next question."""
        return now >= self._next_beat

    def beat(self, now: float, *, lag: float = 0.0, busy: int = 0, chunks: int = 0) -> Heartbeat:
        """Returns the beat to write now: a question, an answer, or both.

        The `sent` of a question grows even while the clock stands. An answer alone has none, and
        owes the peer nothing: otherwise two peers would answer each other for ever.
        """
        sent = 0.0
        if not self._owes or now >= self._next_beat - self.interval / 2:
            sent = self._sent = max(now, self._sent + MIN_STEP)
            self._next_beat = now + self.interval
            self._waited = self._waited or 0.0
        self._owes = False
        return Heartbeat(sent, self._heard, lag, busy, chunks)

    def heard(self, beat: Heartbeat, now: float) -> None:
        """Takes a beat of the peer."""
        if beat.sent:
            self._heard = beat.sent
            self._owes = True
        self.peer_lag, self.peer_busy = max(0.0, beat.lag), beat.busy
        if self._echoed < beat.echo <= self._sent:
            self._echoed = beat.echo
            self.last_echo = now
            self._waited = None if beat.echo >= self._sent else 0.0

    def acknowledged(self, now: float) -> None:
        """Hears that the peer has a receipt for something new, or took chunks that were new to it."""
        self.last_echo = max(self.last_echo, now)
        self._waited = None if self._waited is None else 0.0

    def arrived(self, now: float) -> None:
        """Hears that chunks came from the peer, whenever it may have sent them."""
        self._arrived = now

    def opened(self, now: float) -> None:
        """Hears that the peer proved itself on a new carrier: that is life, too."""
        self.last_echo = max(self.last_echo, now)
        self._waited = None
        self._owes = False  # who asked on the last carrier asks again on this one
        self._next_beat = now

    def answered(self, now: float) -> None:
        """Hears from the peer that it is there, and lets this side in later."""
        self.last_echo = max(self.last_echo, now)
        self._waited = None

    def silence(self, now: float) -> float:
        """Returns the seconds since the last sign of life."""
        return max(0.0, now - self.last_echo)

    def silence_words(self, now: float) -> str:
        """Says how long it was silent, and what it said last of what keeps it."""
        words = f"silent for {self.silence(now):.1f} s"
        if self.peer_lag > 0.1 or self.peer_busy:
            words += f" (it last said: loop {self.peer_lag:.1f} s late, {self.peer_busy} calls being served)"
        return words

    def tick(self, now: float) -> bool:
        """Returns whether the peer is lost; to be called several times per interval."""
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
        return self.lost_after + (self.lost_after if self._comes(now) else slow)

    def _comes(self, now: float) -> bool:
        return now - self._arrived < self.lost_after


# -- counts frames that bring nothing new, of which honest peers write a few a second. Pure ------

# Between two ticks of the exchange, of which there are four a heartbeat: one beat, its echo, and
# what a carrier brings again after a break. A thousand cost the loop 20 ms.
MOST_IDLE_FRAMES = 1000


@final
class IdleFrames:
    """Of one peer."""

    def __init__(self) -> None:
        self._news = 0
        self._idle = 0

    def take(self, news: int) -> None:
        """Hears of a frame.

        Args:
            news: A number that has grown if the frame brought anything.

        Raises:
            DecodeError: There were too many that did not.
        """
        self._idle = self._idle + 1 if news == self._news else 0
        self._news = news
        if self._idle > MOST_IDLE_FRAMES:
            raise DecodeError(f"a flood: {self._idle} frames with nothing new in them")

    def tick(self) -> None:
        """Begins to count anew."""
        self._idle = 0
