"""Reading a stream on an event loop of the user's, while coroutines there await replies from it.

The reply is then handed over in the thread that waits for it, with no hop from telegrad's loop. The
socket is watched through a descriptor of this object's own, since only the loop itself may stop
watching. A loop that does not come back while something is there (user code blocks it) is given up by
the next tick: telegrad's loop watches again, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import Protocol, final

from telegrad.transport.interrupts import Shield
from telegrad.transport.loop import handing_context

__all__ = ["LoopReader", "Shared"]


class Shared(Protocol):
    """A stream that this reads, besides others."""

    def read(self) -> None:
        """Reads what is there."""

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
    """

    def __init__(self, stream: Shared, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._stream = stream
        self._descriptor = os.dup(descriptor)
        self._lock = threading.Lock()  # guards the next two
        self._closed = False
        self._out = False  # telegrad's threads do not watch it
        self._awaiting = 0  # this and the next two: on the loop alone
        self._watched = False
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
        if not self._watched:
            self._watched = True
            handing_context().run(self.loop.add_reader, self._descriptor, self._read)
        return self._end

    def _end(self) -> None:
        self._awaiting -= 1
        if not self._awaiting:
            self._put_back()
            # After the coroutine has gone on: it often awaits the next call at once. A loop that was
            # closed under it watches nothing.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon(self._unwatch)

    def _read(self) -> None:
        self._reads += 1
        with Shield():
            self._stream.read()

    def _unwatch(self) -> None:
        if self._awaiting and not self._closed:
            return
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
            self.loop.call_soon_threadsafe(self._unwatch)
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
