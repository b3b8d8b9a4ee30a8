"""The session between two incarnations: hands every envelope over exactly once. Pure.

    post 1 2 3 ──▶ unacknowledged {1 2 3} ──next_write──▶ frame(1 2, receipt 7)
                        │  freed by receipt 2 ◀────────── frame(8, receipt 2)
    connection_lost, connection_made(peer holds 1) ─────▶ frame(2 3, receipt 8) again

    big parts     next_write announces ── next_piece ──▶ lanes ──▶ claim, copy, placed, finish

S1. Envelopes are numbered from 1 without gaps, in the order of `post`.
S2. A posted envelope is kept until a receipt covers it; a new carrier sends all of them again.
S3. A receipt is cumulative: it covers n only when 1..n are complete here. Later ones that are
    complete already (an envelope with big parts takes longer) are remembered by number.
S4. A number that was handed over is never handed over again.
S5. A piece that is in its place is never claimed again. An assembly outlives the carrier. It is
    complete when no copy is under way: every claimed piece will be placed or given back.
S6. A goodbye is written when every big envelope before it is covered by a receipt; or before that,
    if its side waits no longer. The reader of a goodbye gives the writer up in either case, so that
    what is missing counts as lost, and nothing comes twice.

S2 gives at least once, S4 and S5 at most once. Pieces travel on lanes, beside the frames: in any
order, and perhaps before the envelope that announces them; then the claim has to wait. Several
big envelopes take turns, piece by piece; those that are to go in order have one turn together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from telegrad.errors import DecodeError, EncodeError
from telegrad.transport.limits import MAX_INLINE_BYTES
from telegrad.wire import (
    DEFAULT_LIMITS,
    ENVELOPE_BYTES,
    INLINE_BYTES,
    PIECE_BYTES,
    Assembly,
    BufferMemory,
    DecodeLimits,
    Envelope,
    Frame,
    Lending,
    Lent,
    Piece,
    Span,
    cut,
    measure,
    pack_chunk,
)

WRITE_BYTES = 2**20  # one gRPC message: coalesced writes carry over 100,000 envelopes/s

# For all messages under way from one peer, at 200 bytes a part: twenty with 100,000 arrays each.
MOST_PARTS_AWAITED = 2**21

# An envelope with more buffers is measured exactly: what stands beside them adds up.
FEW_BUFFERS = 1000

# A receipt rides on the next write. If nothing is written back, it goes alone after this many
# envelopes, and at once for one with big parts: its sender holds their memory until then.
ENVELOPES_PER_RECEIPT = 64


# Returns the places of those parts of an envelope that are lent from now on, by part number.
Lend: TypeAlias = Callable[[Envelope], dict[int, Lent]]


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """The counts of one session so far.

    Attributes:
        posted: Envelopes numbered.
        delivered: Envelopes handed over.
        repeated: Envelopes announced again on a later carrier.
        dropped: Envelopes that came again although they were known.
        unacknowledged: Envelopes kept for a receipt.
        carriers: The number of carriers on which the session was connected.
        awaited: Incomplete requests: the number of pieces still to come, by call.
    """

    posted: int
    delivered: int
    repeated: int
    dropped: int
    unacknowledged: int
    carriers: int
    awaited: Mapping[int, int]


# An envelope, its bytes in a frame, True if all of it travels there, and its deadline.
_Posted: TypeAlias = tuple[Envelope, int, bool, float]


@final
class Session:
    """One end of the session between two incarnations; not thread-safe.

    Args:
        limits: The limits of one message, to the peer or from it.
        memory: Returns memory for received buffers; see `Assembly`.

    Attributes:
        pending: True if the next write would carry anything that the peer has to have now.
        news: A number that grows with every frame that brings something new.
        replies_unread: Replies that were posted and that no receipt covers.
        written: Envelopes in all writes; one that was sent again counts again.
        cutting: The pieces still to be sent, by envelope, for `next_piece`. This and what follows
            are read-only to others.
        acknowledged: The number up to which every envelope is complete at the peer, as it says.
        received_number: The number up to which every envelope of the peer is complete here.
        goodbye_written: True if this side's goodbye was written to the present carrier.
    """

    def __init__(
        self, limits: DecodeLimits = DEFAULT_LIMITS, memory: BufferMemory | None = None
    ) -> None:
        self.pending = False
        self.news = self.replies_unread = self.written = 0
        self._limits = limits
        self._memory = memory
        self._small = min(INLINE_BYTES, limits.document_bytes, limits.message_bytes // 2)
        self._unacknowledged: dict[int, _Posted] = {}
        self._announced = 0  # envelopes up to this number were written on this carrier
        self._announced_before = 0  # the same, for earlier carriers
        self.cutting: deque[deque[Piece]] = deque()
        self._big: set[int] = set()  # numbers that were cut into pieces and have no receipt yet
        self._last_posted = 0
        self.acknowledged = 0
        self.received_number = 0
        self._received_later: set[int] = set()  # complete, but some earlier one is not
        self._assemblies: dict[int, Assembly] = {}
        self._parts_awaited = 0  # in all assemblies together
        self._owed = 0  # envelopes that came since the last receipt was written
        self._connected = False
        self._goodbye: str | None = None
        self.goodbye_written = False
        self._dropped = self._carriers = 0

    @property
    def delivered(self) -> int:
        """The number of envelopes that are complete here."""
        return self.received_number + len(self._received_later)

    @property
    def flushed(self) -> bool:
        """True if the peer has confirmed everything that was posted."""
        return not self._unacknowledged

    @property
    def _goodbye_due(self) -> bool:
        wanted = self._goodbye is not None and not self.goodbye_written
        return wanted and self._announced == self._last_posted and not self._big

    def _look(self) -> None:
        """Computes anew if anything is pending."""
        unannounced = self._announced < self._last_posted
        self.pending = unannounced or self._owed >= ENVELOPES_PER_RECEIPT or self._goodbye_due

    def statistics(self) -> SessionStatistics:
        """Returns the counts so far."""
        return SessionStatistics(
            posted=self._last_posted,
            delivered=self.delivered,
            repeated=max(self.written - max(self._announced, self._announced_before), 0),
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

        The envelope belongs to the session from now on. Its buffers must not change until a receipt
        has covered it. An envelope that has a number, because another session posted it, is copied
        first.

        Args:
            envelope: The envelope to hand over to the peer.
            now: The current time; the envelope's `time_left` counts from it.

        Returns:
            The envelope's number.

        Raises:
            EncodeError: The envelope or its headers are too big; nothing was posted.
        """
        texts, behind, whole = len(envelope.document) + len(envelope.externals), 0, True
        for buffer in envelope.buffers:
            behind += buffer.nbytes if type(buffer) is memoryview else len(buffer)
        size, small = texts + behind + ENVELOPE_BYTES * (1 + len(envelope.buffers)), self._small
        if texts > small or behind > small or len(envelope.buffers) > FEW_BUFFERS:
            size, whole = measure(envelope, self._limits)
        elif headers := envelope.headers:
            size += sum(map(len, headers)) + sum(map(len, headers.values()))
        if size > MAX_INLINE_BYTES:
            raise EncodeError(
                f"the headers of an envelope of kind {envelope.kind!r} are too big (bytes: "
                f"{size}, at most {MAX_INLINE_BYTES}); send fewer references in one call"
            )
        if envelope.number:
            envelope = replace(envelope)
        envelope.number = self._last_posted = number = self._last_posted + 1
        self._unacknowledged[number] = envelope, size, whole, now + envelope.time_left
        if envelope.reply:
            self.replies_unread += 1
        self.pending = True
        return number

    def leave(self, reason: str, *, now: bool = False) -> None:
        """Requests a goodbye after all posted envelopes, once their big parts have arrived.

        Args:
            reason: The reason, in words, for the peer.
            now: True if the goodbye overtakes all that this carrier still lacks. Ignored if an
                earlier goodbye lacks nothing.
        """
        if now:
            if self.goodbye_written or self._goodbye_due:
                return
            self._announced = self._last_posted
            self._big.clear()
            self.cutting.clear()
        self._goodbye = reason
        self._look()

    def connection_made(self, peer_received: int) -> None:
        """Starts on a new carrier, after the peer said up to which number it is complete.

        Raises:
            DecodeError: The peer holds less than it once acknowledged, or more than was sent: this
                session is with another peer.
        """
        self._acknowledge(peer_received)
        self._connected = True
        self._carriers += 1
        self._announced_before = max(self._announced, self._announced_before)
        # S2: all that no receipt covers is written again, whatever the last carrier has brought.
        self._announced = self.acknowledged
        self.cutting.clear()
        self.goodbye_written = False
        self._look()

    def connection_lost(self) -> None:
        """Stops writing until there is a carrier again; big parts will be cut into pieces again."""
        self._connected = False
        self.cutting.clear()

    def abandon(self) -> None:
        """Drops everything that was posted or is half received; the peer is lost."""
        self.connection_lost()
        self._unacknowledged.clear()
        self._big.clear()
        self._assemblies.clear()
        self._parts_awaited = 0

    def next_write(
        self,
        limit: int = WRITE_BYTES,
        now: float = 0.0,
        lend: Lend | None = None,
        carry: int = 0,
    ) -> Frame:
        """Returns the next write, of about `limit` bytes.

        Everything in it counts as written.

        Args:
            limit: Bytes after which nothing more is added.
            now: The current time, from which the time left to deadlines is computed.
            lend: Lends the peer those parts of an envelope that lie in memory shared with it.
                Called once for each envelope: the peer may have written into lent memory since, so
                the same bytes cannot be lent again. If such an envelope was not handed over, it is
                sent again in pieces.
            carry: The maximal bytes of a piece that goes in this frame, since no lane can be
                opened; 0 for none.
        """
        envelopes: list[Envelope] = []
        frame = Frame(envelopes, self.received_number, None, None, {})
        self._owed = 0
        last, room = self._announced, limit
        while last < self._last_posted and self._connected:
            envelope, size, whole, deadline = self._unacknowledged[last + 1]
            if size > room and envelopes:
                break
            last += 1
            room -= size
            # Computed at each write, so that the time for which it has waited here counts.
            if deadline != math.inf:
                envelope.time_left = deadline - now if deadline > now else 0.0
            lent: Container[int] = ()
            big = not whole or envelope.staged
            if lend is not None and big and last > self._announced_before:
                lent = _lent(envelope, lend, frame)
            if not whole:
                self._cut(envelope, lent)
            envelopes.append(envelope)
        self.written += last - self._announced
        self._announced = last
        self.pending = last < self._last_posted
        # A write that one big envelope overfills has no room for a piece.
        if carry and room >= 0 and (piece := self.next_piece(carry)) is not None:
            frame.laneless = pack_chunk(piece)
        if self._goodbye is not None and self._connected and self._goodbye_due:
            frame.goodbye = self._goodbye
            self.goodbye_written = True
        return frame

    def next_piece(self, most: int = PIECE_BYTES) -> Piece | None:
        """Returns the next piece for a lane; the announced envelopes take turns.

        The piece counts as sent. Its data is a view of the posted buffer.

        Args:
            most: The maximal bytes of the piece; a multiple of 16 KiB.
        """
        if not self.cutting:
            return None
        pieces = self.cutting.popleft()
        piece = pieces.popleft()
        if len(piece.data) > most:
            piece, rest = piece.split(most)
            pieces.appendleft(rest)
        if pieces:
            self.cutting.append(pieces)
        return piece

    def received(self, frame: Frame) -> list[Envelope]:
        """Takes a frame; returns the envelopes that are complete now, each for the first time.

        Raises:
            DecodeError: The frame breaks the protocol; the carrier it came on must be closed.
        """
        if frame.receipt > self.acknowledged:
            self._acknowledge(frame.receipt)
        complete: list[Envelope] = []
        later, assemblies = self._received_later, self._assemblies
        for envelope in frame.envelopes:
            number = envelope.number
            if number <= self.received_number or number in later or number in assemblies:
                if number < 1:
                    raise DecodeError(f"an envelope without a number (kind: {envelope.kind!r})")
                self._dropped += 1  # it came again, on a new carrier
                if number in frame.awaited and self._is_complete(number):
                    self._owe_receipt()  # its sender need not cut it again
            elif number in frame.awaited:
                self._begin(envelope, frame.awaited[number])
            elif number == self.received_number + 1 and not later:  # the usual case
                self.received_number = number
                self.news += 1
                complete.append(envelope)
            else:
                self._complete(envelope, complete)
        self._owed += len(frame.envelopes)
        if self._owed >= ENVELOPES_PER_RECEIPT:
            self.pending = True
        return complete

    def announced(self, number: int) -> bool:
        """Returns True if an envelope is known; a piece of an unknown envelope has to wait."""
        return self._is_complete(number) or number in self._assemblies

    def claim(self, piece: Span) -> memoryview | None:
        """Returns the memory for the bytes of a piece; None if they are not wanted any more.

        The caller copies the bytes there, in any thread, and then calls `settle`.

        Raises:
            DecodeError: The piece does not fit the announcement.
            MemoryError: There is no memory for its part; call `give_up`.
        """
        assembly = self._assemblies.get(piece.number)
        return None if assembly is None else assembly.claim(piece)

    def settle(self, piece: Span, *, came: bool) -> Assembly | None:
        """Ends the claim of a piece, whose bytes are in their place if they came.

        Returns:
            The assembly if that was its last claim: join it, in any thread, then call `finish`.
        """
        assembly = self._assemblies.get(piece.number)
        done = assembly is not None and assembly.settle(piece, came=came)
        return assembly if done else None

    def finish(self, number: int) -> list[Envelope]:
        """Ends an assembly that was joined; returns its envelope, unless the peer is lost."""
        assembly = self._assemblies.pop(number, None)
        complete: list[Envelope] = []
        if assembly is not None:
            self._parts_awaited -= assembly.parts
            self._complete(assembly.envelope, complete)
            self._owe_receipt()
        return complete

    def give_up(self, number: int, error: MemoryError) -> list[Envelope]:
        """Ends an assembly for lack of memory; returns its envelope, which has the error instead.

        It counts as complete: pieces of it that still come are not wanted, and the receipt tells
        the peer to send no more of them.
        """
        # Claims of other threads may be under way; their `settle` finds no assembly and does
        # nothing.
        if (assembly := self._assemblies.get(number)) is not None:
            assembly.give_up(error)
        return self.finish(number)

    def _cut(self, envelope: Envelope, lent: Container[int]) -> None:
        if not (pieces := deque(cut(envelope, lent))):
            return
        self._big.add(envelope.number)
        if envelope.in_order:
            for before in self.cutting:
                if self._unacknowledged[before[-1].number][0].in_order:
                    before += pieces
                    return
        self.cutting.append(pieces)

    def _owe_receipt(self) -> None:
        self._owed = ENVELOPES_PER_RECEIPT
        self.pending = True

    def _begin(self, envelope: Envelope, awaited: Mapping[int, int]) -> None:
        self.news += 1
        self._parts_awaited += len(awaited)
        if self._parts_awaited > MOST_PARTS_AWAITED:
            raise DecodeError(f"more than {MOST_PARTS_AWAITED} parts announced that have not come")
        most = self._limits.message_bytes
        self._assemblies[envelope.number] = Assembly(envelope, awaited, most, self._memory)

    def _is_complete(self, number: int) -> bool:
        return number <= self.received_number or number in self._received_later

    def _complete(self, envelope: Envelope, complete: list[Envelope]) -> None:
        complete.append(envelope)
        self.news += 1
        number = envelope.number
        if number != self.received_number + 1:
            self._received_later.add(number)
            return
        while number + 1 in self._received_later:
            number += 1
            self._received_later.discard(number)
        self.received_number = number

    def _acknowledge(self, number: int) -> None:
        if not self.acknowledged <= number <= self._last_posted:
            raise DecodeError(
                f"a receipt for envelope {number} (acknowledged before: {self.acknowledged}, "
                f"posted: {self._last_posted})"
            )
        for covered in range(self.acknowledged + 1, number + 1):
            if self._unacknowledged.pop(covered)[0].reply:
                self.replies_unread -= 1
        self.news += number - self.acknowledged
        self.acknowledged = number
        if number > self._announced or self._big:
            self._announced = max(number, self._announced)  # it may not be on this carrier yet
            self._big = {big for big in self._big if big > number}
            for pieces in self.cutting:
                while pieces and pieces[0].number <= number:
                    pieces.popleft()
            self.cutting = deque(filter(None, self.cutting))
            self._look()


def _lent(envelope: Envelope, lend: Lend, frame: Frame) -> Container[int]:
    """Lends parts of an envelope and records them in the frame; returns their numbers."""
    lent = lend(envelope)
    if lent:
        if frame.lending is None:
            frame.lending = Lending()
        frame.lending.lent[envelope.number] = lent
    return lent
