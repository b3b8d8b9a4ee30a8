"""One bulk lane: chunks of 1 MiB at most both ways, on a carrier of its own.

        next_piece ─▶ make_chunk ─▶ send ═══ lane ═══▶ receive ─▶ announced? ─▶ store
                      (bulk thread)                                    (bulk thread copies)

A few chunks are made ahead, and a few copied behind, so that neither waits for the other. There
are no credits: a reader that is behind stops reading, and HTTP/2's flow control stops the sender.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias, final

from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.bulk.cargo import Cargo
from telegrad.transport.bulk.pace import Pace
from telegrad.transport.bulk.thread import BulkThread, make_chunk
from telegrad.transport.session.terms import Counters
from telegrad.wire import read_chunk

__all__ = ["Lane"]

# Chunks made before the one being sent has left, and copied while the next ones are read. One
# more hides the hop to the bulk thread; each costs 1 MiB per lane.
AHEAD = 2

# A chunk, and where its data begins in its part.
_Made: TypeAlias = "tuple[asyncio.Future[bytes], int]"


@final
class Lane:
    """One lane of a stream; on the loop.

    Attributes:
        sent: Chunks that were taken to be sent.
        left: Chunks that went.
        taken: Chunks that came.

    Args:
        carrier: What moves the bytes; it has proved itself.
        cargo: What is loaded and unloaded.
        bulk: Where chunks are made.
        counters: What is counted.
        pace: Says how big chunks are to be, and hears what is sent.
        preamble: What has to be sent before the first chunk: a listener's welcome.
    """

    def __init__(
        self,
        carrier: Carrier,
        cargo: Cargo,
        bulk: BulkThread,
        counters: Counters,
        *,
        pace: Pace,
        preamble: bytes = b"",
    ) -> None:
        self.carrier = carrier
        self.sent = self.left = 0
        self.taken = 0
        self._cargo = cargo
        self._bulk = bulk
        self._counters = counters
        self._pace = pace
        self._preamble = preamble
        self._open = True
        self._work = asyncio.Event()  # there may be pieces to send
        self._news = asyncio.Event()  # there may be new announcements

    def is_open(self) -> bool:
        """Whether this is still a lane of its stream."""
        return self._open

    def wake(self) -> None:
        """Hears that there are pieces to send."""
        self._work.set()

    def announced(self) -> None:
        """Hears that the control stream announced envelopes."""
        self._news.set()

    def let_go(self) -> None:
        """Ends the tasks that read and write it."""
        self._open = False
        self._work.set()
        self._news.set()

    async def write(self) -> None:
        """Sends pieces until the lane is let go.

        Raises:
            CarrierClosedError: It broke.
        """
        if self._preamble:
            await self.carrier.send(self._preamble)
        made: deque[_Made] = deque()
        while self._open:
            self._work.clear()
            self._make(made)
            if made:
                chunk, offset = made.popleft()
                await self._send(await chunk, offset)
            else:
                await self._work.wait()

    async def read(self) -> None:
        """Takes chunks until the lane is let go.

        Raises:
            CarrierClosedError: It broke, or a chunk is missing.
            DecodeError: What came is no chunk, or fits nothing that was announced.
        """
        copying: deque[asyncio.Future[None]] = deque()
        while self._open:
            copied = await self._receive()
            if copied is not None:
                copying.append(copied)
            if len(copying) >= AHEAD:
                await copying.popleft()

    # What holds a chunk returns before the next wait for one: an idle lane keeps no bytes.

    def _make(self, made: deque[_Made]) -> None:
        while len(made) < AHEAD:
            piece = self._cargo.next_piece(self._pace.stride)
            if piece is None:
                return
            chunk = self._bulk.run(make_chunk, self.sent, piece)
            made.append((chunk, piece.offset))
            self.sent += 1
            self._pace.sent(len(piece.data))

    async def _send(self, chunk: bytes, offset: int) -> None:
        await self.carrier.send(chunk)
        self.left += 1
        self._counters.chunk_left(len(chunk), offset)

    async def _receive(self) -> asyncio.Future[None] | None:
        """Waits for a chunk, and for its announcement; has it copied where it is wanted."""
        message = await self.carrier.receive()
        if not self.is_open():
            return None
        sequence, piece = read_chunk(message)
        if sequence != self.taken:
            raise CarrierClosedError(f"chunk {sequence} came in place of {self.taken}")
        self.taken += 1
        self._counters.chunk_came(len(message), piece.offset)
        while not self._cargo.announced(piece.number):
            self._news.clear()
            await self._news.wait()
            if not self.is_open():
                return None
        return self._cargo.store(piece)
