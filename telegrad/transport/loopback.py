"""Envelopes to oneself: a copy, handed over on the loop as if it had come from a peer."""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from telegrad.transport.base import Receiver
from telegrad.transport.loop import LoopThread
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

__all__ = ["Loopback"]


@final
class Loopback:
    """What a worker has in place of a connection to itself; needs no socket.

    Args:
        info: The worker.
        loop: Where envelopes are handed over.
        receiver: Whom to.
    """

    def __init__(self, info: WorkerInfo, loop: LoopThread, receiver: Receiver) -> None:
        self._info = info
        self._loop = loop
        self._receiver = receiver
        self._queue_lock = threading.Lock()  # guards the next three
        self._queue: deque[Envelope] = deque()
        self._posted = 0
        self._woken = False

    def post(self, envelope: Envelope) -> None:
        """Copies an envelope, buffers too, in the calling thread; hands it over on the loop."""
        copy = Envelope(
            envelope.kind,
            envelope.call,
            envelope.reply,
            envelope.time_left,
            envelope.depth,
            envelope.document,
            envelope.externals,
            dict(envelope.headers),
            [bytearray(buffer) for buffer in envelope.buffers],
        )
        with self._queue_lock:
            self._posted += 1
            copy.number = self._posted
            self._queue.append(copy)
            woken, self._woken = self._woken, True
        if not woken:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        with self._queue_lock:
            ready, self._queue = self._queue, deque()
            self._woken = False
        for envelope in ready:
            self._receiver.on_envelope(self._info, envelope)
