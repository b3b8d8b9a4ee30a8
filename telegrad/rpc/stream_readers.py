"""All streams that one worker reads: what arrives for them, and how they end with it."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, final

from telegrad.errors import NotInitializedError, WorkerLostError
from telegrad.rpc.interceptor import CallRecord
from telegrad.rpc.served_call import current_served_call
from telegrad.rpc.stream_messages import ITEM, STREAM, read_item
from telegrad.rpc.stream_reading import StreamReader
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

if TYPE_CHECKING:
    from telegrad.rpc.agent import Agent

__all__ = ["StreamReaders"]

# A stream that was dropped before its end is closed within this time: as long as nobody reads, the
# producer rests, so there is no hurry.
HOUSEKEEPING_SECONDS = 1.0


def _as_it_is(error: BaseException) -> BaseException:
    return error


@final
class StreamReaders:
    """The streams that this worker reads. From any thread; handlers run on the loop.

    Args:
        agent: This worker.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the next two
        self._readers: dict[int, StreamReader] = {}
        self._ticking = False
        self._dropped: SimpleQueue[int] = SimpleQueue()
        agent.register_handler(ITEM, self._on_item)
        agent.on_lost(self._on_lost)
        agent.on_ending(self.end)
        agent.after_close(self.close)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._readers)

    def open(
        self,
        peer: WorkerInfo,
        name: str,
        payload: dict[str, Any],
        limit: float,
        *,
        kind: str = STREAM,
        told: Callable[[BaseException], BaseException] = _as_it_is,
    ) -> StreamReader:
        """Asks a worker for a stream.

        Args:
            peer: The producer.
            name: What is called.
            payload: What `call_payload` made, or the like.
            limit: Seconds to wait for each next item.
            kind: What the producer serves it by.
            told: Says of an error of the request what is raised where the stream is read.

        Raises:
            EncodeError: The payload cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
        """
        reader = self._new(peer, name, limit, told)
        number = reader.number
        with self._lock:
            self._readers[number] = reader
        try:
            reply = self.agent.send(
                peer,
                kind,
                {**payload, "stream": number},
                function=name,
                timeout=math.inf,
                record=reader.record,
            )
        except BaseException:
            self.forget(reader)
            raise
        reader.start(reply)
        self._keep_house()
        return reader

    def failed(self, peer: WorkerInfo, name: str, error: BaseException) -> StreamReader:
        """Returns a stream that was not asked for, since it is known how it would end."""
        reader = self._new(peer, name, math.inf, _as_it_is)
        reader.fail(error)
        return reader

    def _new(
        self,
        peer: WorkerInfo,
        name: str,
        limit: float,
        told: Callable[[BaseException], BaseException],
    ) -> StreamReader:
        number, root = next(self._numbers), current_served_call() is None
        return StreamReader(self, number, peer, CallRecord(name), limit, told, root=root)

    def drop(self, reader: StreamReader) -> None:
        """Hears from a finaliser that nobody reads a stream any more."""
        self._dropped.put(reader.number)

    def forget(self, reader: StreamReader, left: list[Envelope] | None = None) -> None:
        """Hears that nothing more will come for a stream; gives back what nobody will read."""
        with self._lock:
            self._readers.pop(reader.number, None)
        for envelope in left or ():
            self.agent.codec.drop(reader.peer, reader.record, envelope)

    def end(self) -> None:
        """Ends the streams of code that serves no call: a graceful shutdown begins.

        It would wait for them, and nobody need read on. What this worker serves it still serves.
        """
        self._end(lambda reader: reader.root)

    def close(self) -> None:
        """Ends all streams, since the agent has ended."""
        self._end(lambda reader: True)

    def _end(self, is_meant: Callable[[StreamReader], bool]) -> None:
        with self._lock:
            readers = [reader for reader in self._readers.values() if is_meant(reader)]
        for reader in readers:
            message = f"{reader.label} was not read to its end before rpc.shutdown()"
            reader.close(NotInitializedError(message))

    def _on_item(self, peer: WorkerInfo, envelope: Envelope) -> None:
        header = read_item(envelope)
        reader = self._readers.get(header.stream)
        if reader is None or reader.peer != peer:
            self.agent.codec.drop(peer, CallRecord(ITEM), envelope)
            return
        wanted = False
        try:
            wanted = reader.arrive(header.number, header.size, envelope)
        finally:
            if not wanted:
                self.agent.codec.drop(peer, reader.record, envelope)

    def _on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        with self._lock:
            readers = [reader for reader in self._readers.values() if reader.peer == peer]
        for reader in readers:
            reader.lose(error)

    def _keep_house(self) -> None:
        with self._lock:
            first = not self._ticking and bool(self._readers)
            self._ticking = self._ticking or first
        if first:
            self.agent.after(HOUSEKEEPING_SECONDS, self._tick)

    def _tick(self) -> None:
        """Now and then while a stream is open; on the loop."""
        self.close_dropped()
        with self._lock:
            self._ticking = False
        self._keep_house()

    def close_dropped(self) -> None:
        """Closes the streams whose last reference is gone."""
        with contextlib.suppress(Empty):
            while True:
                reader = self._readers.get(self._dropped.get_nowait())
                if reader is not None:
                    reader.report_end()
                    reader.close()
