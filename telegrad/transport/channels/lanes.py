"""The bulk lanes of one stream: opened when a big part is to be sent, let go with the stream.

The worker that dialled the control stream dials its lanes, at the same endpoint: two over gRPC, or,
for a stream that has moved to a TCP socket, one over another socket, which two threads move
(`socket_lane`). Each lane proves that it belongs to this stream and no other
(`telegrad.transport.security.handshake`). Chunks are as safe as the stream is: under TLS they are
encrypted; without it they carry no tags of their own, and can be altered by somebody on the path.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError, Direct
from telegrad.transport.channels.answers import OWN_MEMORY
from telegrad.transport.channels.base import Channel, Counters, Means
from telegrad.transport.channels.bulk_thread import BulkThread, make_chunk
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.channels.pace import Pace
from telegrad.transport.channels.socket_lane import SocketLane
from telegrad.transport.channels.standstill import Standstill
from telegrad.wire import Frame, Memory, read_chunk

__all__ = ["LANES", "DialLane", "Lane", "Lanes", "Way"]

logger = logging.getLogger(__name__)

# benchmarks/bulk_lanes.py on two busy cores, medians: two lanes move 1.1 times (pushes) to 1.35
# times (echoes) as much as one; a third 1.1 and 0.97 times as much as two, which is the noise.
LANES = 2
MOST_LANES = 8  # that a dialler may open: another version may have a better number


# -- one lane over a carrier of its own ------------------------------------------------------------
#
#         next_piece ─▶ make_chunk ─▶ send ═══ lane ═══▶ receive ─▶ announced? ─▶ store
#                       (bulk thread)                                    (bulk thread copies)
#
# A few chunks are made ahead, and a few copied behind, so that neither waits for the other. There
# are no credits: a reader that is behind stops reading, and HTTP/2's flow control stops the sender.

# Chunks that are made before the present one has left, and copied while the next ones are read. One
# more hides the hop to the bulk thread; each costs 1 MiB per lane.
AHEAD = 2

# A chunk, and the offset of its data in its part.
_Made: TypeAlias = "tuple[asyncio.Future[bytes], int]"


@final
class Lane:
    """One lane of a stream; on the loop.

    Attributes:
        sent: Chunks that were taken to be sent.
        left: Chunks that went.
        taken: Chunks that came.

    Args:
        carrier: Moves the bytes; it has proved itself.
        cargo: The pieces to load and unload.
        bulk: The thread that makes chunks.
        counters: The counts of the worker.
        pace: Sets the size of chunks, and hears of chunks that are sent.
        preamble: The bytes to send before the first chunk: a listener's welcome.
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
        """Returns True if this is still a lane of its stream."""
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
            CarrierClosedError: The lane broke.
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
            CarrierClosedError: The lane broke, or a chunk is missing.
            DecodeError: A message is no chunk, or fits nothing that was announced.
        """
        copying: deque[asyncio.Future[None]] = deque()
        while self._open:
            copied = await self._receive()
            if copied is not None:
                copying.append(copied)
            if len(copying) >= AHEAD:
                await copying.popleft()

    # The functions that hold a chunk return before the next wait for one: an idle lane keeps no
    # bytes.

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
        """Waits for a chunk, and for its announcement; copies it to its place if it is wanted."""
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


# -- all lanes of one stream -----------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Way:
    """The facts that lanes need about their control stream.

    Attributes:
        stream_id: The stream's name.
        endpoint: The address at which this side dialled it, and dials its lanes; empty when the
            peer did, and does.
        direct: The address to which the stream is to move; empty for none.
    """

    stream_id: bytes
    endpoint: str = ""
    direct: str = ""

    def moved(self, stream_id: bytes) -> Way:
        """Returns the facts about a stream that has taken the place of this one."""
        return Way(stream_id, self.direct)


class DialLane(Protocol):
    """Dials a lane and proves that it belongs to a stream."""

    async def __call__(self, way: Way) -> Carrier:
        """Returns the lane's carrier.

        Raises:
            ConnectionError: The lane cannot be had.
        """


@final
class Lanes(Channel):
    """The lanes beside one control stream, which carry the parts that no other channel lends.

    The loop calls its methods, except those of `Channel`.

    Args:
        means: The parts that the worker's channels share.
        peer: The name of the worker at the other end.
        way: The facts that lanes need about the control stream.
        cargo: The pieces that lanes load and unload.
        patience: Seconds without progress after which lanes count as stalled.
        held: True if no lane is dialled until `release`.
        dial: Dials a lane.
        on_broken: Hears once that a lane broke; has to close all of them.

    Attributes:
        way: The facts that lanes need about the control stream.
        held: True while the stream is about to move to a socket (`moving`), so that no lane is
            dialled.
    """

    def __init__(
        self,
        means: Means,
        peer: str,
        way: Way,
        *,
        cargo: Cargo,
        patience: float,
        held: bool,
        dial: DialLane,
        on_broken: Callable[[Lanes, Exception], None],
    ) -> None:
        self._means = means
        self._peer = peer
        self.way = way
        self._cargo = cargo
        self._dial_lane = dial
        self._on_broken = on_broken
        self._standstill = Standstill(means.clock(), patience=patience)
        self._pace = Pace(means.clock())
        self._lanes: list[Lane | SocketLane] = []
        self.held = held
        self._wanted = self._dialling = False
        self._open = True

    @property
    def dialled(self) -> bool:
        """True if this side dialled the control stream."""
        return bool(self.way.endpoint)

    @property
    def sent(self) -> int:
        """The number of chunks that were given to these lanes."""
        return sum(lane.sent for lane in self._lanes)

    @property
    def taken(self) -> int:
        """The number of chunks that came on these lanes; heartbeats tell the peer."""
        return sum(lane.taken for lane in self._lanes)

    @property
    def known_taken(self) -> int:
        """The number of chunks that the peer has said it took."""
        return self._standstill.taken

    @property
    def moved(self) -> bool:
        """True if any chunk came or went."""
        return any(lane.taken or lane.left for lane in self._lanes)

    # From any thread, as a Channel.

    def wake(self) -> None:
        """Hears that there are pieces to send."""
        if not (lanes := self._in_own_threads()):
            self._means.loop.call(self._wake)
        for lane in lanes:
            lane.wake()

    def memory(self) -> Memory:
        """Returns the memory of results, which lanes send from where they lie."""
        return OWN_MEMORY

    def heard(self, frame: Frame) -> None:
        """Hears if the peer announced big parts, and the number of chunks that it took."""
        if frame.awaited:
            if not (lanes := self._in_own_threads()):
                self._means.loop.call(self._announced)
            for lane in lanes:
                lane.announced()
        if frame.heartbeat is not None:
            self._means.loop.call(self._heard_chunks, frame.heartbeat.chunks)

    def _in_own_threads(self) -> list[SocketLane]:
        """Returns the lanes, if there are any and all of them may be woken without the loop."""
        lanes = [lane for lane in self._lanes if isinstance(lane, SocketLane)]
        return lanes if len(lanes) == len(self._lanes) else []

    # On the loop.

    def _wake(self) -> None:
        self._want()
        for lane in self._lanes:
            lane.wake()

    def _announced(self) -> None:
        self._want()
        for lane in self._lanes:
            lane.announced()

    def _heard_chunks(self, chunks: int) -> None:
        self._standstill.heard(chunks)
        self._pace.heard(chunks, self._means.clock())

    def stand_still(self, now: float) -> bool:
        """Returns True if chunks are owed and none has been taken for too long."""
        return self._standstill.tick(now, sent=self.sent, waiting=self._cargo.waiting)

    def accepts(self, stream_id: bytes) -> bool:
        """Returns True if a lane of that stream may be taken from the peer."""
        mine = self._open and not self.dialled and stream_id == self.way.stream_id
        return mine and len(self._lanes) < MOST_LANES

    def take(self, carrier: Carrier, *, preamble: bytes = b"") -> None:
        """Adds a lane whose handshake is done.

        Args:
            carrier: Moves its bytes.
            preamble: The bytes to send before the first chunk.
        """
        if carrier.takes_over and carrier.direct is not None:
            self._lanes.append(self._in_threads(carrier, carrier.direct, preamble))
        else:
            self._lanes.append(self._on_loop(carrier, preamble))
        self._means.counters.lanes += 1

    def release(self) -> None:
        """Hears that the stream stays on its carrier: lanes are dialled when they are wanted."""
        self.held = False
        if self._wanted:
            self._want()

    def close(self) -> None:
        """Ends all lanes, also those that are being dialled; on the loop. Idempotent."""
        if not self._open:
            return
        self._open = False
        for lane in self._lanes:
            lane.let_go()
            self._means.spawn(lane.carrier.close())

    def _want(self) -> None:
        """Dials, on the first call and if this side dials the lanes."""
        self._wanted = True
        if self._open and self.dialled and not self._dialling and not self.held:
            self._dialling = True
            self._means.spawn(self._dial())

    def _on_loop(self, carrier: Carrier, preamble: bytes) -> Lane:
        means, pace = self._means, self._pace
        lane = Lane(carrier, self._cargo, means.bulk, means.counters, pace=pace, preamble=preamble)
        means.spawn(self._run(lane.read()))
        means.spawn(self._run(lane.write()))
        return lane

    def _in_threads(self, carrier: Carrier, below: Direct, preamble: bytes) -> SocketLane:
        means = self._means
        lane = SocketLane(
            carrier,
            below,
            self._cargo,
            means.bulk,
            means.counters,
            pace=self._pace,
            on_broken=lambda error: means.loop.call_soon(self._break, error),
            preamble=preamble,
        )
        lane.start()
        return lane

    async def _dial(self) -> None:
        try:
            carrier = await self._dial_lane(self.way)
        except ConnectionError as error:
            self._break(error)
            return
        if not self._open:
            await carrier.close()
            return
        self.take(carrier)
        if len(self._lanes) < LANES and not carrier.takes_over:
            self._means.spawn(self._dial())

    async def _run(self, task: Coroutine[Any, Any, None]) -> None:
        try:
            await task
        except (CarrierClosedError, DecodeError, MemoryError) as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        if self._open:
            self._on_broken(self, error)
