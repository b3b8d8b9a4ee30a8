"""The bulk lanes of one stream: opened when a big part is to be sent, let go with the stream.

The worker that dialled the control stream dials its lanes, at the same endpoint: two over gRPC, or,
for a stream that has moved to a TCP socket, one over another socket. Two threads move each
(`lane`). Each lane proves that it belongs to this stream and no other
(`telegrad.transport.security.handshake`). Chunks are as safe as the stream is: under TLS they are
encrypted; without it they carry no tags of their own, and can be altered by somebody on the path.

A lane that cannot be opened (a certificate has expired, descriptors or threads are used up, a
firewall) costs speed and no more. If none is open, both ends put their pieces into frames of the
control stream, and the dialler tries again at times.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.channels.base import Means
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.channels.lane import CarrierChunks, Lane, SocketChunks
from telegrad.transport.channels.pace import Pace
from telegrad.wire import CHUNK_HEADER_BYTES, Frame

# benchmarks/bulk_lanes.py on two busy cores, medians: two lanes move 1.1 times (pushes) to 1.35
# times (echoes) as much as one; a third 1.1 and 0.97 times as much as two, which is the noise.
LANES = 2
MOST_LANES = 8  # that a dialler may open: another version may have a better number
RETRY_SECONDS = 30.0  # between dials of lanes that cannot be opened, while there is need of them


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


# Dials a lane, and proves that it belongs to a stream; raises a ConnectionError if none can be had.
DialLane: TypeAlias = Callable[[Way], Awaitable[Carrier]]


@final
class LaneTries:
    """The failures to open a lane to one peer, on any of its streams.

    Attributes:
        retry_at: The time before which no lane is dialled.
        told: True once the user was told.
    """

    def __init__(self) -> None:
        self.retry_at = -math.inf
        self.told = False

    def failed(self, now: float) -> None:
        """Records that no lane could be opened, or that none moved anything."""
        self.retry_at = now + RETRY_SECONDS


@final
class Lanes:
    """The lanes beside one control stream, which carry the parts that no shared memory has.

    The loop calls its methods, except `wake` and `heard`.

    Args:
        patience: Seconds without progress after which lanes count as stalled.
        held: True if no lane is dialled until `release`.
        tries: The failures to open a lane of earlier streams.
        on_broken: Hears once that a lane broke; has to close all of them.
        on_laneless: Hears if pieces have to travel in frames, and why; and with None that a lane
            is open again.

    Attributes:
        way: The facts that lanes need about the control stream.
        held: True while the stream is about to move to a socket (`dial`), so that no lane is
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
        tries: LaneTries,
        dial: DialLane,
        on_broken: Callable[[Lanes, Exception], None],
        on_laneless: Callable[[Lanes, Exception | None], None],
    ) -> None:
        self._means = means
        self._peer = peer
        self.way = way
        self._cargo = cargo
        self._dial_lane = dial
        self._on_broken = on_broken
        self._on_laneless = on_laneless
        self._pace = Pace(means.clock(), patience)
        self._lanes: list[Lane] = []
        self.held = held
        self._tries = tries
        self._carried = 0  # chunks that came in frames
        self._wanted = self._dialling = False
        self._open = True

    @property
    def dialled(self) -> bool:
        """True if this side dialled the control stream."""
        return bool(self.way.endpoint)

    @property
    def taken(self) -> int:
        """The number of chunks that came on these lanes; heartbeats tell the peer."""
        return self._carried + sum(lane.taken for lane in self._lanes)

    @property
    def stride(self) -> int:
        """The maximal bytes of the next chunk."""
        return self._pace.stride

    @property
    def known_taken(self) -> int:
        """The number of chunks that the peer has said it took."""
        return self._pace.taken

    @property
    def moved(self) -> bool:
        """True if any chunk came or went."""
        return any(lane.taken or lane.left for lane in self._lanes)

    # From any thread.

    def wake(self) -> None:
        """Wakes the lanes, as there are pieces to send."""
        if not self._lanes:
            self._means.loop.call(self._want)
        for lane in self._lanes:
            lane.wake()

    def heard(self, frame: Frame) -> None:
        """Records if the peer announced big parts, and the number of chunks that it took."""
        if frame.awaited:
            if not self._lanes:
                self._means.loop.call(self._want)
            for lane in self._lanes:
                lane.announced()
        if frame.heartbeat is not None:
            self._pace.heard(frame.heartbeat.chunks, self._means.clock())

    def carried(self, chunk: bytes) -> None:
        """Counts a chunk that goes in a frame; in the thread that writes it."""
        self._pace.sent(len(chunk) - CHUNK_HEADER_BYTES)

    def take_carried(self, chunk: bytes) -> None:
        """Takes a chunk that came in a frame, in the thread that reads the stream.

        Raises:
            DecodeError: It is no chunk, or does not fit an announcement.
        """
        self._cargo.put_in_place(chunk)
        self._carried += 1

    # On the loop.

    def stand_still(self, now: float) -> bool:
        """Returns True if chunks are owed and none has been taken for too long."""
        return self._pace.is_stalled(now, waiting=self._cargo.waiting)

    def accepts(self, stream_id: bytes) -> bool:
        """Returns True if a lane of that stream may be taken from the peer."""
        mine = self._open and not self.dialled and stream_id == self.way.stream_id
        return mine and len(self._lanes) < MOST_LANES

    def take(self, carrier: Carrier, *, preamble: bytes = b"") -> None:
        """Adds a lane whose handshake is done.

        Args:
            carrier: Moves its bytes.
            preamble: The bytes to send before the first chunk.

        Raises:
            CarrierClosedError: The system starts no more threads.
        """
        means, below = self._means, carrier.direct if carrier.takes_over else None
        chunks = CarrierChunks(carrier, means.loop) if below is None else SocketChunks(below)
        lane = Lane(
            carrier,
            chunks,
            self._cargo,
            means.counters,
            pace=self._pace,
            on_broken=lambda error: means.loop.call_soon(self._lane_broke, lane, error),
        )
        try:
            lane.start(means.threads, preamble)
        except CarrierClosedError:
            lane.let_go()
            raise
        self._lanes.append(lane)
        means.counters.lanes += 1

    def release(self) -> None:
        """Lets lanes be dialled when they are wanted, as the stream stays on its carrier."""
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
        if not (self._open and self.dialled) or self._dialling or self.held:
            return
        if self._means.clock() < self._tries.retry_at:
            self._on_laneless(self, CarrierClosedError("a lane broke a short while ago"))
            return
        self._dialling = True
        self._means.spawn(self._dial())

    async def _dial(self) -> None:
        try:
            carrier = await self._dial_lane(self.way)
        except DecodeError as error:
            self._break(error)
            return
        except ConnectionError as error:
            self._not_opened(error)
            return
        if not self._open:
            await carrier.close()
            return
        try:
            self.take(carrier)
        except CarrierClosedError as error:
            self._means.spawn(carrier.close())
            self._not_opened(error)
            return
        self._on_laneless(self, None)
        if len(self._lanes) < LANES and not carrier.takes_over:
            self._means.spawn(self._dial())

    def _not_opened(self, error: Exception) -> None:
        """Goes on over the lane that is open; if there is none, over the control stream."""
        if not self._open or self._lanes:
            return
        self._dialling = False
        self._tries.failed(self._means.clock())
        self._on_laneless(self, error)

    def _lane_broke(self, lane: Lane, error: Exception) -> None:
        """Ends all lanes with one that broke, unless that had carried nothing.

        The other end may have started no thread for that one, or does not want it. Whoever dialled
        it decides what to do without it.
        """
        if not (lane.unused and self._open):
            self._break(error)
            return
        lane.let_go()
        if lane not in self._lanes:
            return  # both of its threads have told
        self._lanes.remove(lane)
        self._means.spawn(lane.carrier.close())
        if self.dialled:
            self._not_opened(error)

    def _break(self, error: Exception) -> None:
        if self._open:
            self._on_broken(self, error)
