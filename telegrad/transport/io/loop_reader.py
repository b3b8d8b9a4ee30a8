"""Reading a stream on an event loop of the user's, while coroutines there await replies from it.

The reply is then handed over in the thread that waits for it, with no hop from telegrad's loop. The
socket is watched through a descriptor of this object's own, since only the loop itself may stop
watching. A loop that does not come back while something is there (user code blocks it) is given up by
the next tick: telegrad's loop watches again, too. When several requests have come, which others do,
it leaves the socket to them until the next reply is awaited.

While a wait is likely to be short (`spin`) the loop does not sleep, nor is it asked to watch: a
callback looks at the socket and comes again in the next turn, between the other callbacks.

    nobody awaits ──▶ looks ── the window is over ──▶ watched      (a wait of the kind that is short)
          └─────────────────────────────────────────▶ watched      (any other)
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol, final

from telegrad.transport.io.handle_set import MOST_REQUESTS
from telegrad.transport.io.spin import WANTED_SECONDS, Shield, Spin
from telegrad.transport.loop import handing_context

__all__ = ["LoopReader", "Shared"]


# In a turn of the loop, which itself takes as long as so many looks.
LOOKS = 8


class Shared(Protocol):
    """A stream that this reads, besides others."""

    def read(self) -> int:
        """Reads what is there; returns how many messages brought requests."""

    def take_out(self) -> None:
        """Has telegrad's threads watch it no more."""

    def put_back(self) -> None:
        """Has them watch it again."""


@final
class LoopReader:
    """One stream, on one loop of the user's.

    Args:
        stream: What is read.
        descriptor: Of its socket, which is open.
        loop: Which runs in the calling thread.
        spin: Seconds for which it looks before it sleeps.
    """

    def __init__(
        self, stream: Shared, descriptor: int, loop: asyncio.AbstractEventLoop, spin: float
    ) -> None:
        self.loop = loop
        self._stream = stream
        self._context = handing_context()  # in which the loop reads
        self._descriptor = os.dup(descriptor)
        self._lock = threading.Lock()  # guards the next two
        self._closed = False
        self._out = False  # telegrad's threads do not watch it
        self._spin = Spin(spin)  # this and what follows: on the loop alone
        self._awaiting = 0
        self._requests = 0  # messages that brought some, since a reply began to be awaited
        self._watched = False
        self._coming = False  # in the next turn
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._began = self._until = 0.0  # the present wait, and looking for its end
        self._reads = 0
        self._reads_seen = 0  # by the tick

    # On the user's loop.

    def begin(self) -> Callable[[], None] | None:
        """Reads from now on, until what is returned is called; None when the stream is over."""
        with self._lock:
            if self._closed:
                return None
            if not self._out:
                self._out = True
                self._stream.take_out()
        self._awaiting += 1
        self._requests = 0
        self._begin_wait()
        return self._end

    def _end(self) -> None:
        self._awaiting -= 1
        if not self._awaiting:
            self._put_back()
            self._come_soon()  # after the coroutine has gone on: it often awaits the next call

    def _read(self) -> None:
        self._reads += 1
        self._spin.learn(time.monotonic() - self._began)
        with Shield():
            try:
                self._requests += self._stream.read()
            finally:
                if self._leaves():
                    self._put_back()
                    self._unwatch()
                else:
                    self._begin_wait()

    def _leaves(self) -> bool:
        """Whether others do better to read."""
        return self._requests >= MOST_REQUESTS

    def moved(self, size: int) -> None:
        """Hears that big parts of so many bytes went, or came, for which a wait may last longer."""
        self._spin.moved(size)

    def _begin_wait(self) -> None:
        self._began = time.monotonic()
        if window := self._spin.window:
            self._until = self._began + window + self._spin.extra
            self._come_soon()
        elif not self._watched:
            self._watch()

    def _watch(self) -> None:
        self._watched = True
        handing_context().run(self.loop.add_reader, self._descriptor, self._read)

    def _come_soon(self) -> None:
        """Has the loop take another turn before it sleeps."""
        if not self._coming:
            try:
                self.loop.call_soon(self._come, context=self._context)
                self._coming = True
            except RuntimeError:  # it was closed under a coroutine, and watches nothing
                pass

    def _come(self) -> None:
        self._coming = False
        if not self._awaiting or self._closed or self._leaves():
            self._unwatch()
        elif self._spin.window:
            self._look()

    def _look(self) -> None:
        poll, began = self._poll.poll, time.monotonic()
        for _ in range(LOOKS):
            if poll(0):
                self._read()
                return
            os.sched_yield()
        now = time.monotonic()
        if now < self._until and now - began < WANTED_SECONDS:
            if self._watched:
                self._unwatch()
            self._come_soon()
        elif not self._watched:
            self._watch()

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self.loop.remove_reader(self._descriptor)
        if self._closed:
            self._close_descriptor()

    # On telegrad's loop.

    def tick(self) -> None:
        """Looks whether the user's loop still reads."""
        reads, seen = self._reads, self._reads_seen
        self._reads_seen = reads
        with self._lock:
            stuck = reads == seen and self._out and not self._closed and self._is_readable()
        if stuck:
            self._put_back()

    def close(self) -> None:
        """Reads no more. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._put_back()
        try:
            self.loop.call_soon_threadsafe(self._come)
        except RuntimeError:  # that loop is closed, and watches nothing
            self._close_descriptor()

    def _put_back(self) -> None:
        with self._lock:
            if self._out:
                self._out = False
                self._stream.put_back()

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def _close_descriptor(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)
