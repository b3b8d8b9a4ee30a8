"""Envelopes to oneself: a copy, handed over on the loop as if it had come from a peer."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import final

from telegrad.transport.base import Receiver
from telegrad.transport.bulk_thread import BulkThread
from telegrad.transport.loop import LoopThread
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, copy_of, inline_parts

__all__ = ["Loopback"]


@final
class Loopback:
    """What a worker has in place of a connection to itself; needs no socket.

    Args:
        info: The worker.
        loop: Where envelopes are handed over.
        bulk: Where big ones are copied that were posted on the loop.
        receiver: Whom to.
    """

    def __init__(
        self, info: WorkerInfo, loop: LoopThread, bulk: BulkThread, receiver: Receiver
    ) -> None:
        self._info = info
        self._loop = loop
        self._bulk = bulk
        self._receiver = receiver
        self._queue_lock = threading.Lock()  # guards the next three
        self._queue: deque[Envelope] = deque()
        self._posted = 0
        self._woken = False

    def post(self, envelope: Envelope) -> None:
        """Copies an envelope, buffers too, and hands it over on the loop.

        The calling thread copies; in place of the loop the bulk thread copies what is big.
        """
        if self._loop.is_loop_thread() and not all(inline_parts(envelope)):
            copying = self._bulk.run(_copy, envelope)
            copying.add_done_callback(self._copied)
        else:
            self._put(_copy(envelope))

    def _copied(self, copying: asyncio.Future[Envelope]) -> None:
        if not copying.cancelled():  # else the exchange is closed
            self._put(copying.result())

    def _put(self, copy: Envelope) -> None:
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
