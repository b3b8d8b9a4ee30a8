"""One bulk lane over a socket of its own, moved by two threads: no loop, no gRPC, few copies.

        next_piece ─▶ sendmsg ═══ TCP, under TLS if the stream is ═══▶ recv_into its final place

A chunk is the same as on a lane over gRPC, behind its size in four bytes. If it is plain, only the
kernel copies its bytes: out of the value as it was at the time of the call, into the array in which
it ends. TLS decrypts into that array, too. Bytes that the peer has not sent end the lane before
they count as placed. There are no credits here either: a reader that is behind stops reading, and
TCP stops the sender.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError, Direct
from telegrad.transport.channels.base import Counters
from telegrad.transport.channels.bulk_thread import BulkThread
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.channels.pace import Pace
from telegrad.transport.sockets.message_socket import HEADER_BYTES, header_of
from telegrad.wire import (
    CHUNK_HEADER_BYTES,
    Piece,
    Span,
    chunk_header,
    read_chunk_header,
)

__all__ = ["SocketLane"]


@final
class SocketLane:
    """One lane of a stream, in threads of its own; made and ended on the loop.

    Attributes:
        carrier: The socket.
        sent: Chunks that were taken to be sent.
        left: Chunks that went.
        taken: Chunks that came.

    Args:
        carrier: The socket; it has proved itself.
        below: Moves its bytes.
        cargo: The pieces to load and unload.
        bulk: Starts the threads.
        counters: The counts of the worker.
        pace: Sets the size of chunks, and hears of chunks that are sent.
        on_broken: Takes the reason, in one of the threads, why the lane ended, unless it was let
            go.
        preamble: The bytes to send before the first chunk: a listener's welcome.
    """

    def __init__(
        self,
        carrier: Carrier,
        below: Direct,
        cargo: Cargo,
        bulk: BulkThread,
        counters: Counters,
        *,
        pace: Pace,
        on_broken: Callable[[Exception], None],
        preamble: bytes = b"",
    ) -> None:
        self.carrier = carrier
        self.sent = self.left = 0
        self.taken = 0
        self._below = below
        self._cargo = cargo
        self._bulk = bulk
        self._counters = counters
        self._pace = pace
        self._on_broken = on_broken
        self._preamble = preamble
        self._open = True
        self._work = threading.Event()  # there may be pieces to send
        self._news = threading.Event()  # there may be new announcements

    def start(self) -> None:
        """Begins to read and write."""
        self._bulk.start(functools.partial(self._run, self._write))
        self._bulk.start(functools.partial(self._run, self._read))

    def is_open(self) -> bool:
        """Returns True if this is still a lane of its stream."""
        return self._open

    def wake(self) -> None:
        """Hears that there are pieces to send."""
        self._work.set()

    def announced(self) -> None:
        """Hears that the control stream announced envelopes."""
        self._news.set()

    def let_go(self) -> None:
        """Ends the threads that read and write it, soon."""
        self._open = False
        self._below.end()
        self._work.set()
        self._news.set()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (CarrierClosedError, DecodeError, MemoryError) as error:
            if self.is_open():
                self._on_broken(error)

    # The functions that hold a piece return before the next wait: an idle lane keeps no bytes.

    def _write(self) -> None:
        if self._preamble:
            self._below.send_all(header_of(self._preamble) + self._preamble)
        while self.is_open():
            self._work.clear()
            if (
                self.is_open() and not self._send_next()
            ):  # let go after the first look, before the clear
                self._work.wait()

    def _send_next(self) -> bool:
        piece = self._cargo.next_piece(self._pace.stride)
        if piece is None:
            return False
        sequence, self.sent = self.sent, self.sent + 1
        self._pace.sent(len(piece.data))
        size = self._send(sequence, piece)
        self.left += 1
        self._counters.chunk_left(size, piece.offset)
        return True

    def _send(self, sequence: int, piece: Piece) -> int:
        header = chunk_header(sequence, piece)
        size = len(header) + len(piece.data)
        self._below.send_all(size.to_bytes(HEADER_BYTES, "big") + header, piece.data)
        return size

    def _read(self) -> None:
        beginning = memoryview(bytearray(HEADER_BYTES + CHUNK_HEADER_BYTES))
        while self.is_open():
            self._below.fill(beginning)
            size = int.from_bytes(beginning[:HEADER_BYTES], "big")
            sequence, span = read_chunk_header(beginning[HEADER_BYTES:], size)
            if sequence != self.taken:
                raise CarrierClosedError(f"chunk {sequence} came in place of {self.taken}")
            self._take(span, size)

    def _came(self, span: Span, size: int) -> None:
        self.taken += 1
        self._counters.chunk_came(size, span.offset)

    def _take(self, span: Span, size: int) -> None:
        """Receives the data of a chunk into its place."""
        self._await_announcement(span)
        place = self._cargo.claim(span)
        if place is None:  # it came before; its bytes have to be read all the same
            self._below.fill(memoryview(bytearray(span.size)))
            self._came(span, size)
            return
        try:
            self._below.fill(place)
        except BaseException:
            self._cargo.give_back(span)
            raise
        del place  # a function that returns the array may find that nobody else has it
        self._came(span, size)
        self._cargo.place(span)

    def _await_announcement(self, span: Span) -> None:
        while self.is_open():
            self._news.clear()
            if self._cargo.announced(span.number):
                return
            if self.is_open():  # it may have been let go before the clear
                self._news.wait()
        raise CarrierClosedError("the lane was let go")
