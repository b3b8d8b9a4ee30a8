"""One bulk lane over a carrier of its own: two threads, and not the loop, make and place chunks.

        next_piece ─▶ send ═══ a socket, or gRPC ═══▶ receive ─▶ announced? ─▶ its final place

Over a plain socket only the kernel copies the bytes of a chunk: out of the value as it was at the
time of the call, into the array in which it ends. TLS decrypts into that array, too. gRPC takes and
gives whole messages, which each thread copies once. Bytes that the peer has not sent end the lane
before they count as placed. There are no credits: a reader that is behind stops reading, and TCP,
or HTTP/2's flow control, stops the sender.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar, final

import numpy as np

from telegrad.critical import critical
from telegrad.errors import DecodeError
from telegrad.transport.base import HEADER_BYTES, Carrier, CarrierClosedError, Direct
from telegrad.transport.channels.base import Counters, LaneThreads
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.channels.pace import Pace
from telegrad.transport.loop import LoopThread
from telegrad.wire import (
    BLOCK_BYTES,
    CHUNK_HEADER_BYTES,
    Buffer,
    Span,
    chunk_header,
    read_chunk_header,
)

T = TypeVar("T")


@final
class SocketChunks:
    """Chunks on a socket; each stands behind its size. One thread sends and one receives.

    Each method blocks, and raises CarrierClosedError once the socket is closed.
    """

    def __init__(self, below: Direct) -> None:
        self._below = below
        self._beginning = memoryview(bytearray(HEADER_BYTES + CHUNK_HEADER_BYTES))

    def send(self, header: bytes, data: Buffer) -> None:
        """Sends one message; only the system copies the data."""
        size = len(header) + len(data)
        self._below.send_all(size.to_bytes(HEADER_BYTES, "big") + header, data)

    def receive(self) -> tuple[Buffer, int]:
        """Returns the header of the next chunk, and the size of the chunk with it."""
        self._below.fill(self._beginning)
        size = int.from_bytes(self._beginning[:HEADER_BYTES], "big")
        return self._beginning[HEADER_BYTES:], size

    def fill(self, place: memoryview) -> None:
        """Receives the data of the chunk into its place."""
        self._below.fill(place)

    def skip(self, size: int) -> None:
        """Receives the data of the chunk, and drops it."""
        room = memoryview(bytearray(min(size, BLOCK_BYTES)))
        while size:
            part = room[:size]
            self._below.fill(part)
            size -= len(part)


@final
class CarrierChunks:
    """Chunks that are messages of a carrier, which the loop moves; with the same methods."""

    def __init__(self, carrier: Carrier, loop: LoopThread) -> None:
        self._carrier = carrier
        self._loop = loop
        self._data = memoryview(b"")  # of the chunk whose header was received last

    def send(self, header: bytes, data: Buffer) -> None:
        """Sends one message; copies the data."""
        self._wait_for(self._carrier.send(b"".join((header, data))))

    def receive(self) -> tuple[Buffer, int]:
        """Returns the header of the next chunk, and the size of the chunk with it."""
        message = self._wait_for(self._carrier.receive())
        self._data = memoryview(message)[CHUNK_HEADER_BYTES:]
        return message[:CHUNK_HEADER_BYTES], len(message)

    def fill(self, place: memoryview) -> None:
        """Copies the data of the chunk to its place, without the GIL."""
        data, self._data = self._data, memoryview(b"")  # an idle lane keeps no bytes
        np.copyto(np.frombuffer(place, np.uint8), np.frombuffer(data, np.uint8))

    def skip(self, size: int) -> None:
        """Drops the data of the chunk."""
        self._data = memoryview(b"")

    def _wait_for(self, operation: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run(operation)
        except CancelledError as error:
            raise CarrierClosedError("the loop has ended") from error


@final
class Lane:
    """One lane of a stream, in threads of its own; made and ended on the loop.

    Attributes:
        carrier: The carrier, which its owner closes when it lets go of the lane.
        sent: Chunks that were taken to be sent.
        left: Chunks that went.
        taken: Chunks that came.
        unused: True until a piece was taken to be sent, or a chunk has begun to come.

    Args:
        pace: Sets the size of chunks, and hears of chunks that are sent.
        on_broken: Takes the reason, in one of the threads, why the lane ended, unless it was let
            go.
    """

    def __init__(
        self,
        carrier: Carrier,
        chunks: SocketChunks | CarrierChunks,
        cargo: Cargo,
        counters: Counters,
        *,
        pace: Pace,
        on_broken: Callable[[Exception], None],
    ) -> None:
        self.carrier = carrier
        self.sent = self.left = 0
        self.taken = 0
        self.unused = True
        self._chunks = chunks
        self._cargo = cargo
        self._counters = counters
        self._pace = pace
        self._on_broken = on_broken
        self._open = True
        self._work = threading.Event()  # there may be pieces to send
        self._news = threading.Event()  # there may be new announcements

    def start(self, threads: LaneThreads, preamble: bytes = b"") -> None:
        """Begins to read and write.

        Args:
            threads: Starts the threads.
            preamble: The bytes to send before the first chunk: a listener's welcome.

        Raises:
            CarrierClosedError: The system starts no more threads.
        """
        threads.start(functools.partial(self._run, functools.partial(self._write, preamble)))
        threads.start(functools.partial(self._run, self._read))

    def is_open(self) -> bool:
        """Returns True if this is still a lane of its stream."""
        return self._open

    def wake(self) -> None:
        """Wakes the thread that sends, as there are pieces."""
        self._work.set()

    def announced(self) -> None:
        """Looks again at pieces that wait, as the control stream announced envelopes."""
        self._news.set()

    def let_go(self) -> None:
        """Ends the threads that read and write it, once the carrier is closed."""
        self._open = False
        self._work.set()
        self._news.set()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            with critical.role:
                work()
        except (CarrierClosedError, DecodeError, MemoryError) as error:
            if self.is_open():
                self._on_broken(error)

    # The functions that hold a piece return before the next wait: an idle lane keeps no bytes.

    def _write(self, preamble: bytes) -> None:
        if preamble:
            self._chunks.send(preamble, b"")
        while self.is_open():
            self._work.clear()
            # It may have been let go before the clear.
            if self.is_open() and not self._send_next():
                self._work.wait()

    def _send_next(self) -> bool:
        piece = self._cargo.next_piece(self._pace.stride, self.is_open)
        if piece is None:
            return False
        self.unused = False
        sequence, self.sent = self.sent, self.sent + 1
        self._pace.sent(len(piece.data))
        header = chunk_header(sequence, piece)
        self._chunks.send(header, piece.data)
        self.left += 1
        self._counters.chunk_left(len(header) + len(piece.data), piece.offset)
        return True

    def _read(self) -> None:
        while self.is_open():
            self._take(*self._next_header())

    def _next_header(self) -> tuple[Span, int]:
        header, size = self._chunks.receive()
        self.unused = False
        sequence, span = read_chunk_header(header, size)
        if sequence != self.taken:
            raise CarrierClosedError(f"chunk {sequence} came in place of {self.taken}")
        return span, size

    def _came(self, span: Span, size: int) -> None:
        self.taken += 1
        self._counters.chunk_came(size, span.offset)

    def _take(self, span: Span, size: int) -> None:
        """Receives the data of a chunk into its place."""
        self._await_announcement(span)
        place = self._cargo.claim(span)
        if place is None:  # it came before, or has no room; its bytes have to be read all the same
            self._chunks.skip(span.size)
            self._came(span, size)
            return
        try:
            self._chunks.fill(place)
        except BaseException:
            self._cargo.settle(span, came=False)
            raise
        del place  # a function that returns the array may find that nobody else has it
        self._came(span, size)
        self._cargo.settle(span, came=True)

    def _await_announcement(self, span: Span) -> None:
        while self.is_open():
            self._news.clear()
            if self._cargo.announced(span.number):
                return
            if self.is_open():  # it may have been let go before the clear
                self._news.wait()
        raise CarrierClosedError("the lane was let go")
