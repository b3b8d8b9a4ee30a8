"""The promise between two incarnations: every envelope is handed over exactly once. Pure.

    post 1 2 3 ──▶ unacknowledged {1 2 3} ──next_write──▶ frame(1 2, receipt 7)
                        │  freed by receipt 2 ◀────────── frame(8, receipt 2)
    connection_lost, connection_made(peer holds 1) ─────▶ frame(2 3, receipt 8) again

    big parts     next_write announces ── next_piece ──▶ lanes ──▶ claim, copy, placed, finish

S1. Envelopes are numbered from 1 without gaps, in the order of `post`.
S2. What was posted is kept until a receipt covers it; on a new carrier all of it is sent again.
S3. A receipt is cumulative: it covers n only when 1..n are complete here. Later ones that are
    complete already (an envelope with big parts takes longer) are remembered by number.
S4. A number that was handed over is never handed over again.
S5. A piece is handed to one claimer at most; an assembly outlives the carrier, and so does a copy
    that is under way: what is claimed will be placed.
S6. A goodbye is written when every big envelope before it is covered by a receipt.

S2 gives at least once, S4 and S5 at most once. Pieces travel on lanes, beside the frames: in any
order, and perhaps before the envelope that announces them, whose claimer then has to wait. Several
big envelopes take turns, piece by piece.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from telegrad.errors import DecodeError, EncodeError
from telegrad.wire import (
    DEFAULT_LIMITS,
    Assembly,
    DecodeLimits,
    Envelope,
    Frame,
    Goodbye,
    Piece,
    cut,
    inline_size,
)

__all__ = ["MAX_MESSAGE_BYTES", "WRITE_BYTES", "Session", "SessionStatistics"]

WRITE_BYTES = 2**20  # one gRPC message: coalesced writes carry over 100,000 envelopes/s
MAX_INLINE_BYTES = 2 * 2**20  # of one envelope: a write that it overfills stays under 4 MiB
# The largest message is a write of one envelope that is as large as may be; a chunk has 1 MiB. Beside
# it stand the envelope's fields, a receipt and a tag. A message is gathered before anyone can look at
# it, from strangers, too: there is always a bound.
MAX_MESSAGE_BYTES = MAX_INLINE_BYTES + 64 * 2**10
PART_OVERHEAD = 16  # bytes that announcing a part takes at most

# Of all messages under way from one peer, at 200 bytes each. Twenty with a hundred thousand arrays.
MOST_PARTS_AWAITED = 2**21

# A receipt rides on the next write. Where nothing is written back it goes alone after so many, and
# at once for an envelope with big parts: its sender holds their memory until then.
ENVELOPES_PER_RECEIPT = 64


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """What a session has done so far.

    Attributes:
        posted: Envelopes numbered.
        delivered: Envelopes handed over.
        repeated: Envelopes announced again on a later carrier.
        dropped: Envelopes that came again and were known.
        unacknowledged: Envelopes kept for a receipt.
        carriers: How often it was connected.
        awaited: Requests that have not come whole: by call, how many pieces are to come.
    """

    posted: int
    delivered: int
    repeated: int
    dropped: int
    unacknowledged: int
    carriers: int
    awaited: Mapping[int, int]


@dataclass(slots=True)
class _Posted:
    envelope: Envelope
    size: int
    deadline: float
    announced: bool = False


@final
class Session:
    """One end of the session between two incarnations; not thread-safe.

    Args:
        limits: Of one message, to the peer or from it.
    """

    def __init__(self, limits: DecodeLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._unacknowledged: dict[int, _Posted] = {}
        self._unannounced: deque[_Posted] = deque()  # not written on this carrier yet
        self._cutting: deque[deque[Piece]] = deque()  # of announced ones, what is left to send
        self._big: set[int] = set()  # numbers that had pieces and have no receipt yet
        self._last_posted = 0
        self._acknowledged = 0
        self._received = 0
        self._received_later: set[int] = set()  # complete, but some earlier one is not
        self._assemblies: dict[int, Assembly] = {}
        self._parts_awaited = 0  # of all of them
        self._envelopes_owed = 0
        self._receipt_now = False
        self._connected = False
        self._goodbye: Goodbye | None = None
        self._goodbye_written = False
        self._delivered = self._repeated = self._dropped = self._carriers = 0
        self._begun = 0
        self._replies_unread = 0

    @property
    def received_number(self) -> int:
        """The number up to which every envelope of the peer is complete here."""
        return self._received

    @property
    def acknowledged(self) -> int:
        """The number up to which the peer has said that every envelope is complete there."""
        return self._acknowledged

    @property
    def news(self) -> int:
        """A number that grows with every frame that brings something new."""
        return self._delivered + self._begun + self._acknowledged

    @property
    def replies_unread(self) -> int:
        """Replies that were posted and that no receipt covers."""
        return self._replies_unread

    @property
    def connected(self) -> bool:
        """Whether there is a carrier to write to."""
        return self._connected

    @property
    def pending(self) -> bool:
        """Whether the next write would carry anything that the peer has to have now."""
        return bool(self._unannounced or self._goodbye_due or self._receipt_due)

    @property
    def pieces_waiting(self) -> bool:
        """Whether `next_piece` would return one."""
        return bool(self._cutting)

    @property
    def flushed(self) -> bool:
        """Whether the peer holds everything that was posted."""
        return not self._unacknowledged

    @property
    def goodbye_written(self) -> bool:
        """Whether this side's goodbye was written to the present carrier."""
        return self._goodbye_written

    @property
    def _receipt_due(self) -> bool:
        return self._receipt_now or self._envelopes_owed >= ENVELOPES_PER_RECEIPT

    @property
    def _goodbye_due(self) -> bool:
        wanted = self._goodbye is not None and not self._goodbye_written
        return wanted and not self._unannounced and not self._big

    def statistics(self) -> SessionStatistics:
        """Returns the counts so far."""
        return SessionStatistics(
            posted=self._last_posted,
            delivered=self._delivered,
            repeated=self._repeated,
            dropped=self._dropped,
            unacknowledged=len(self._unacknowledged),
            carriers=self._carriers,
            awaited={
                each.envelope.call: each.left
                for each in self._assemblies.values()
                if each.envelope.call and not each.envelope.reply
            },
        )

    def post(self, envelope: Envelope, now: float = 0.0) -> int:
        """Numbers an envelope and queues it.

        Its buffers must not change until a receipt has covered it; the envelope itself is copied
        and may be posted to other sessions too.

        Args:
            envelope: What is to be handed over to the peer.
            now: The time, from which its `time_left` counts.

        Returns:
            Its number.

        Raises:
            EncodeError: It or its headers are too big; nothing was posted.
        """
        size = inline_size(envelope, self._limits) + PART_OVERHEAD * len(envelope.buffers)
        if size > MAX_INLINE_BYTES:
            raise EncodeError(
                f"the headers of an envelope of kind {envelope.kind!r} are too big "
                f"(bytes: {size}, at most {MAX_INLINE_BYTES}); send fewer references in one call"
            )
        self._last_posted += 1
        posted = _Posted(_numbered(envelope, self._last_posted), size, now + envelope.time_left)
        self._unacknowledged[self._last_posted] = posted
        self._unannounced.append(posted)
        self._replies_unread += envelope.reply
        return self._last_posted

    def leave(self, reason: str) -> None:
        """Has a goodbye written behind everything that was posted, once big parts have arrived."""
        self._goodbye = Goodbye(reason)

    def connection_made(self, peer_received: int) -> None:
        """Starts on a new carrier, after the peer said what it holds.

        Raises:
            DecodeError: The peer holds less than it once acknowledged, or more than was sent: it
                is not the one this session is with.
        """
        self._acknowledge(peer_received)
        self._connected = True
        self._carriers += 1
        self._unannounced = deque(self._unacknowledged.values())
        self._cutting.clear()
        self._goodbye_written = False

    def connection_lost(self) -> None:
        """Stops writing until there is a carrier again; big parts will be cut again."""
        self._connected = False
        self._cutting.clear()

    def abandon(self) -> None:
        """Lets go of everything that was posted or is half received; the peer is lost."""
        self._connected = False
        self._unacknowledged.clear()
        self._unannounced.clear()
        self._cutting.clear()
        self._big.clear()
        self._assemblies.clear()
        self._parts_awaited = 0

    def next_write(self, limit: int = WRITE_BYTES, now: float = 0.0) -> Frame:
        """Returns what goes into the next write, about `limit` bytes.

        Whatever is in it counts as written.

        Args:
            limit: Bytes after which nothing more is added.
            now: The time, for what is left of deadlines.
        """
        frame = Frame(receipt=self._received)
        self._envelopes_owed, self._receipt_now = 0, False
        if not self._connected:
            return frame
        room = limit
        while self._unannounced and (self._unannounced[0].size <= room or room == limit):
            posted = self._unannounced.popleft()
            room -= posted.size
            frame.envelopes.append(self._announce(posted, now))
        if self._goodbye_due:
            frame.goodbye = self._goodbye
            self._goodbye_written = True
        return frame

    def next_piece(self) -> Piece | None:
        """Returns what a lane sends next; each envelope that was announced has its turn.

        It counts as sent. Its data is a view of what was posted.
        """
        if not self._cutting:
            return None
        pieces = self._cutting.popleft()
        piece = pieces.popleft()
        if pieces:
            self._cutting.append(pieces)
        return piece

    def received(self, frame: Frame) -> list[Envelope]:
        """Takes a frame; returns the envelopes that are complete now, each for the first time.

        Raises:
            DecodeError: The frame breaks the protocol; the carrier it came on must be closed.
        """
        self._acknowledge(max(frame.receipt, self._acknowledged))
        complete: list[Envelope] = []
        for envelope in frame.envelopes:
            self._take_envelope(envelope, frame, complete)
        return complete

    def announced(self, number: int) -> bool:
        """Returns whether an envelope is known; a piece of one that is not has to wait."""
        return self._is_complete(number) or number in self._assemblies

    def claim(self, piece: Piece) -> memoryview | None:
        """Returns where the bytes of a piece belong; None when they are not wanted any more.

        Whoever gets a place copies them there, in any thread, and then calls `placed`.

        Raises:
            DecodeError: It does not fit what was announced.
        """
        assembly = self._assemblies.get(piece.number)
        return None if assembly is None else assembly.claim(piece)

    def placed(self, number: int) -> Assembly | None:
        """Hears that a claimed piece is in its place.

        Returns:
            The assembly, when that was the last one: join it, in any thread, then call `finish`.
        """
        assembly = self._assemblies.get(number)
        return assembly if assembly is not None and assembly.placed() else None

    def finish(self, number: int) -> list[Envelope]:
        """Takes an assembly that was joined; returns its envelope, unless the peer is lost."""
        assembly = self._assemblies.pop(number, None)
        complete: list[Envelope] = []
        if assembly is not None:
            self._parts_awaited -= assembly.parts
            self._complete(assembly.envelope, complete)
            self._receipt_now = True
        return complete

    def _announce(self, posted: _Posted, now: float) -> Envelope:
        envelope = posted.envelope
        self._repeated += posted.announced
        posted.announced = True
        if posted.deadline != math.inf:
            envelope.time_left = max(0.0, posted.deadline - now)
        if pieces := deque(cut(envelope)):
            self._cutting.append(pieces)
            self._big.add(envelope.number)
        return envelope

    def _take_envelope(self, envelope: Envelope, frame: Frame, complete: list[Envelope]) -> None:
        number = envelope.number
        if number < 1:
            raise DecodeError(f"an envelope without a number (kind: {envelope.kind!r})")
        self._envelopes_owed += 1
        awaited = frame.awaited.get(number)
        if self._is_complete(number):
            self._dropped += 1
            self._receipt_now |= awaited is not None  # its sender need not cut it again
        elif number in self._assemblies:  # again, on a new carrier: what is here stays
            self._dropped += 1
        elif awaited is None:
            self._complete(envelope, complete)
        else:
            self._begin(envelope, awaited)

    def _begin(self, envelope: Envelope, awaited: Mapping[int, int]) -> None:
        self._begun += 1
        self._parts_awaited += len(awaited)
        if self._parts_awaited > MOST_PARTS_AWAITED:
            raise DecodeError(f"more than {MOST_PARTS_AWAITED} parts announced that have not come")
        self._assemblies[envelope.number] = Assembly(envelope, awaited, self._limits.message_bytes)

    def _is_complete(self, number: int) -> bool:
        return number <= self._received or number in self._received_later

    def _complete(self, envelope: Envelope, complete: list[Envelope]) -> None:
        complete.append(envelope)
        self._delivered += 1
        self._received_later.add(envelope.number)
        while self._received + 1 in self._received_later:
            self._received += 1
            self._received_later.discard(self._received)

    def _acknowledge(self, number: int) -> None:
        if not self._acknowledged <= number <= self._last_posted:
            raise DecodeError(
                f"a receipt for envelope {number} (acknowledged before: {self._acknowledged}, "
                f"posted: {self._last_posted})"
            )
        for covered in range(self._acknowledged + 1, number + 1):
            self._replies_unread -= self._unacknowledged.pop(covered).envelope.reply
        self._acknowledged = number
        if self._big:
            self._big = {big for big in self._big if big > number}
            self._cutting = deque(left for left in self._cutting if left[0].number > number)


def _numbered(envelope: Envelope, number: int) -> Envelope:
    return Envelope(
        envelope.kind,
        envelope.call,
        envelope.reply,
        envelope.time_left,
        envelope.depth,
        envelope.document,
        envelope.externals,
        envelope.headers,
        envelope.buffers,
        number,
    )
