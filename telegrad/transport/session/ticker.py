"""The beat of all connections of one worker."""

from __future__ import annotations

import asyncio
from typing import final

from telegrad.transport.session.liveness import BEATS_PER_BOUND
from telegrad.transport.session.peers import Peers
from telegrad.transport.session.terms import Terms

TICKS_PER_BEAT = 4
LONGEST_TICK_SECONDS = 0.25  # also the time after which a lag of the loop is noticed
LAG_FADES = 0.9  # per tick; the lag falls to a half within two beats


@final
class Ticker:
    """Beats and judges all connections of one worker, and measures how late the loop runs.

    Runs on the loop.
    """

    def __init__(self, terms: Terms, peers: Peers) -> None:
        self._terms = terms
        self._peers = peers
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0

    def tick(self) -> None:
        """Ticks now, and several times a beat from then on, until it is cancelled."""
        loop, terms = asyncio.get_running_loop(), self._terms
        now = loop.time()
        if self._next:
            faded = LAG_FADES * terms.counters.lag  # a loop that was late may be late again
            terms.counters.lag = max(now - self._next, faded)
        beat = terms.lost_after / BEATS_PER_BOUND
        self._next = now + min(beat / TICKS_PER_BEAT, LONGEST_TICK_SECONDS)
        self._timer = loop.call_at(self._next, self.tick)
        terms.slabs.tick()
        terms.reader.tick()
        clock = terms.clock()
        for carriers in self._peers.all():
            carriers.tick(clock)

    def cancel(self) -> None:
        """Stops ticking."""
        if self._timer is not None:
            self._timer.cancel()
