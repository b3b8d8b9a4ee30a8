"""Envelopes to oneself: a copy, handed over on the loop as if it had come from a peer."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import final

from telegrad.critical import critical
from telegrad.transport.base import Receiver
from telegrad.transport.loop import LoopThread
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, copy_of, inline_parts


@final
class Loopback:
    """The stand-in for a worker's connection to itself; needs no socket."""

    def __init__(self, info: WorkerInfo, loop: LoopThread, receiver: Receiver) -> None:
        self._info = info
        self._loop = loop
        self._receiver = receiver
        self._queue_lock = threading.Lock()  # guards the next two
        self._queue: deque[Envelope] = deque()
        self._posted = 0

    def post(self, envelope: Envelope) -> None:
        """Copies an envelope, buffers too, and hands it over on the loop.

        The calling thread makes the copy. If that is the loop, another thread copies big envelopes
        in its place.
        """
        if self._loop.is_loop_thread() and not all(inline_parts(envelope)):
            copying = self._loop.run_beside(_copy, envelope)
            copying.add_done_callback(self._copied)
        else:
            self._put(_copy(envelope))

    def _copied(self, copying: asyncio.Future[Envelope]) -> None:
        if not copying.cancelled():  # else the exchange is closed
            self._put(copying.result())

    def _put(self, copy: Envelope) -> None:
        with critical.section, self._queue_lock:
            self._posted += 1
            copy.number = self._posted
            self._queue.append(copy)
            first = len(self._queue) == 1
        if first:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        with critical.section, self._queue_lock:
            ready, self._queue = self._queue, deque()
        for envelope in ready:
            self._receiver.on_envelope(self._info, envelope)


def _copy(envelope: Envelope) -> Envelope:
    return Envelope(
        envelope.kind,
        envelope.call,
        envelope.reply,
        envelope.time_left,
        envelope.depth,
        envelope.document,
        envelope.externals,
        dict(envelope.headers),
        [copy_of(buffer) for buffer in envelope.buffers],
    )
