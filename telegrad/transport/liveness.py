"""Whether a peer lives: heartbeats that echo, and only an echo counts as life.

    here                                there
     beat(sent=7) ──────────────────────▶ remembers 7
                  ◀────────────────────── beat(sent=3, echo=7)
     7 was heard: alive at this moment, and the way there and back works

Bytes that merely arrive prove nothing: they may have been queued for long. A peer is lost after
`lost_after` seconds without an echo of something new. Slow is not dead: what the peer said about
the lag of its loop is added to the bound, up to once the bound. And who slept himself (a stopped
process, a stalled loop) must not judge: after a late tick the peer is spared for some more, so that
what has arrived meanwhile is read first, and a peer that has given up this side can say so when it
is dialled again. Pure: the time is always an argument.
"""

from __future__ import annotations

from typing import final

from telegrad.wire import Heartbeat

__all__ = ["BEATS_PER_BOUND", "Liveness"]

BEATS_PER_BOUND = 5  # one lost or late beat must not matter; 0.5 beats/s and peer at the default
# After a late one; 0.2 s with a bound of 1 s, 1 s with one of 10: a dial takes two round trips.
SPARED_TICKS = 4
MIN_STEP = 1e-6  # seconds; far above the resolution of a float at any uptime


@final
class Liveness:
    """What one end knows of the other end's life.

    Args:
        now: The time at which the session opened; the peer was alive then.
        lost_after: Seconds of silence after which it is lost.
    """

    def __init__(self, now: float, *, lost_after: float) -> None:
        self.interval = lost_after / BEATS_PER_BOUND
        self.last_echo = now
        self.peer_lag = 0.0
        self.peer_busy = 0
        self._lost_after = lost_after
        self._sent = 0.0
        self._echoed = 0.0
        self._heard = 0.0
        self._next_beat = now
        self._last_tick = now
        self._spared = 0  # ticks before it judges again

    def due(self, now: float) -> bool:
        """Returns whether it is time for the next beat."""
        return now >= self._next_beat

    def beat(self, now: float, *, lag: float = 0.0, busy: int = 0, chunks: int = 0) -> Heartbeat:
        """Returns the beat to write now; its `sent` grows even while the clock stands."""
        self._sent = max(now, self._sent + MIN_STEP)
        self._next_beat = now + self.interval
        return Heartbeat(self._sent, self._heard, lag, busy, chunks)

    def heard(self, beat: Heartbeat, now: float) -> None:
        """Takes a beat of the peer."""
        self._heard = beat.sent
        self.peer_lag, self.peer_busy = max(0.0, beat.lag), beat.busy
        if self._echoed < beat.echo <= self._sent:
            self._echoed = beat.echo
            self.last_echo = now

    def opened(self, now: float) -> None:
        """Hears that the peer proved itself on a new carrier: that is life, too."""
        self.last_echo = max(self.last_echo, now)
        self._next_beat = now

    def silence(self, now: float) -> float:
        """Returns the seconds since the last sign of life."""
        return max(0.0, now - self.last_echo)

    def tick(self, now: float) -> bool:
        """Returns whether the peer is lost; to be called several times per interval."""
        late = now - self._last_tick > self.interval and not self._spared
        self._last_tick = now
        self._spared = SPARED_TICKS if late else max(0, self._spared - 1)
        bound = self._lost_after + min(self.peer_lag, self._lost_after)
        return not self._spared and self.silence(now) > bound
