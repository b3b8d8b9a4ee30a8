"""Reading direct sockets on a user loop, while coroutines there await replies.

The loop watches an epoll of its own, which holds the sockets while this loop has the reader's role.
A loop that does not come back although something is there (user code blocks it) loses the role at
the second tick that finds it so. A loop that has read several requests leaves the role until the
next reply is awaited: others run those requests, and each must be handed to them.

While a wait is likely to be short (`spin`), the loop does not sleep: a callback looks at the
sockets and comes again in the next turn, between the other callbacks.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from typing import Protocol, final

from telegrad.transport.io.burst import BurstWriter
from telegrad.transport.io.shield import Shield
from telegrad.transport.io.spin import WANTED_SECONDS, Spin
from telegrad.transport.loop import handing_context

MOST_REQUESTS = 4  # that a reader of replies reads, before it leaves them to others
LOOKS = 8  # in one turn of the loop, which itself takes as long as so many looks


class WatchedSockets(Protocol):
    """The sockets of an exchange, as a user loop sees them.

    Attributes:
        bursts: The messages that wait to be written together.
    """

    bursts: BurstWriter

    def begin_await(self, watch: LoopWatch) -> None:
        """Gives the loop the reader's role, unless a thread waits."""

    def end_await(self, watch: LoopWatch) -> None:
        """Takes the role back from the loop; from any thread, idempotent."""

    def read_in_loop(self, watch: LoopWatch) -> int:
        """Reads arrived messages if the loop has the role; returns how many had requests."""


@final
class LoopWatch:
    """One user loop, and the sockets of one exchange.

    Args:
        loop: The loop that runs in the calling thread.
        spin: Seconds for which the loop looks before it sleeps.

    Attributes:
        epoll: The epoll that holds the sockets while this loop has the role.
        closed: True if it reads no more.
    """

    def __init__(
        self, sockets: WatchedSockets, loop: asyncio.AbstractEventLoop, spin: float
    ) -> None:
        self.loop = loop
        self.epoll = select.epoll()
        self.closed = False
        self._sockets = sockets
        self._context = handing_context()  # the context in which the loop reads
        self._spin = Spin(spin)  # this and the following are for the user loop alone
        self._awaiting = 0
        self._requests = 0  # messages with requests since a reply began to be awaited
        self._coming = False  # True if it looks in the next turn
        self._began = self._until = 0.0  # of the present wait; the end of looking
        self._reads = 0
        self._reads_seen = 0  # by the tick
        self._context.run(loop.add_reader, self.epoll.fileno(), self._read)

    # On the user loop.

    def begin(self) -> None:
        """Starts to read: a coroutine awaits a reply."""
        self._awaiting += 1
        self._requests = 0
        self._sockets.begin_await(self)
        if self._sockets.bursts.waiting:
            self._come_soon()  # after all coroutines that are ready have posted their messages
        self._begin_wait()

    def end(self) -> None:
        """Records that a coroutine no longer awaits its reply."""
        self._awaiting -= 1
        if not self._awaiting:
            self._sockets.end_await(self)

    def _read(self) -> None:
        self._reads += 1
        self._spin.learn(time.monotonic() - self._began)
        with Shield():
            self._requests += self._sockets.read_in_loop(self)
        if self._requests < MOST_REQUESTS:
            self._begin_wait()
        else:
            self._sockets.end_await(self)

    def _begin_wait(self) -> None:
        self._began = time.monotonic()
        if window := self._spin.window:
            self._until = self._began + window
            self._come_soon()

    def _come_soon(self) -> None:
        """Makes the loop take another turn before it sleeps."""
        if not self._coming:
            self._coming = True
            self.loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        self._coming = False
        if self._sockets.bursts.waiting:
            with Shield():
                self._sockets.bursts.write()
        if not self._awaiting or self.closed or self._requests >= MOST_REQUESTS:
            return
        poll, began = self.epoll.poll, time.monotonic()
        for _ in range(LOOKS):
            if poll(0):
                self._read()
                return
            os.sched_yield()
        now = time.monotonic()
        if now < self._until and now - began < WANTED_SECONDS:
            self._come_soon()

    def _close_here(self) -> None:
        self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()

    # On telegrad's loop.

    def is_stuck(self) -> bool:
        """Returns True if something has been there for the loop since the last tick."""
        reads, seen = self._reads, self._reads_seen
        self._reads_seen = reads
        return reads == seen and not self.closed and bool(self.epoll.poll(0))

    def close(self) -> None:
        """Stops reading. Idempotent; the sockets are not in the epoll any more."""
        if self.closed:
            return
        self.closed = True
        try:
            self.loop.call_soon_threadsafe(self._close_here)
        except RuntimeError:  # that loop is closed, and watches nothing
            self.epoll.close()
