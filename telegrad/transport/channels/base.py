"""The interface of channels, which move big parts of envelopes beside the control stream.

    part of an envelope ──▶ in-line              parts of 64 KiB and less, in their frame
                        ──▶ a channel that lends  the first of `Channels.kinds` that has the part
                        ──▶ lanes                all other parts, in pieces of 1 MiB at most

A channel belongs to one control stream and ends with it. A kind of channel belongs to one worker:
it opens a channel on each stream whose two ends can use it. A further kind is a file here and one
entry in `Channels.kinds`; its news for the other end travels in frames, as `wire.Lending`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from telegrad.transport.base import Carrier
from telegrad.transport.channels.bulk_thread import BulkThread
from telegrad.transport.loop import LoopThread
from telegrad.wire import (
    NO_MEMORY,
    PIECE_BYTES,
    Assembly,
    Envelope,
    Frame,
    Lent,
    Memory,
    Piece,
    Span,
)

__all__ = ["Channel", "ChannelKind", "Counters", "Means", "Pieces"]


@dataclass(slots=True)
class Counters:
    """The counts of all connections of an exchange; each connection counts its frames itself.

    Any thread counts chunks, by methods. The loop alone counts the others.
    """

    connections: int = 0
    kept_on_grpc: int = 0  # connections that could not move to a socket
    lanes: int = 0
    chunks_sent: int = 0
    chunks_received: int = 0
    bulk_bytes_sent: int = 0
    bulk_bytes_received: int = 0
    lag: float = 0.0
    _chunks_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def chunk_left(self, size: int, offset: int) -> None:
        """Counts a chunk that went by a lane, as one if it begins a MiB of its part."""
        with self._chunks_lock:
            self.chunks_sent += offset % PIECE_BYTES == 0
            self.bulk_bytes_sent += size

    def chunk_came(self, size: int, offset: int) -> None:
        """Counts a chunk that came by a lane, as one if it begins a MiB of its part."""
        with self._chunks_lock:
            self.chunks_received += offset % PIECE_BYTES == 0
            self.bulk_bytes_received += size


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The parts that the channels of one worker share.

    Attributes:
        loop: The loop thread that owns the sockets.
        spawn: Starts a task that the exchange awaits or cancels when it closes.
        clock: The clock of liveness and deadlines.
        moved: Takes the number of bytes that a frame lends, in the thread that writes or reads the
            frame.
        bulk: The thread that copies array bytes.
        counters: The counts of the worker.
    """

    loop: LoopThread
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    clock: Callable[[], float]
    moved: Callable[[int], None]
    bulk: BulkThread = field(default_factory=BulkThread)
    counters: Counters = field(default_factory=Counters)


class Channel(ABC):
    """A path for big parts between two workers, beside one control stream.

    Any thread calls these methods. The methods that take a frame are called in the order of the
    frames, by the thread that writes or reads them.

    Attributes:
        bytes_sent: The bytes of the parts that it lent.
        bytes_received: The bytes of the parts that the peer lent.
    """

    bytes_sent = 0
    bytes_received = 0

    @property
    def due(self) -> bool:
        """True if the peer should hear news now, and not with the next frame."""
        return False

    def memory(self) -> Memory:
        """Returns the memory in which values that go to the peer next may be put."""
        return NO_MEMORY

    def lend(self, envelope: Envelope) -> dict[int, Lent]:
        """Lends the parts of an envelope that this channel has; returns their places by number."""
        del envelope
        return {}

    def write(self, frame: Frame) -> None:
        """Adds this channel's news to a frame that is sent next."""
        del frame

    def read(self, frame: Frame) -> None:
        """Puts the parts that the peer has lent into the envelopes of a frame.

        Raises:
            DecodeError: The frame says something impossible.
            CarrierClosedError: This process has no room for the parts.
        """
        del frame

    def heard(self, frame: Frame) -> None:
        """Hears of a frame that was taken: of its announcements and of its sign of life."""
        del frame

    def wake(self) -> None:
        """Hears that there are pieces that no channel has lent."""
        return

    @abstractmethod
    def close(self) -> None:
        """Ends the channel with its stream: nothing is sent any more. Idempotent."""


class ChannelKind(ABC):
    """A kind of channel, for all streams of one worker."""

    @abstractmethod
    def open(self, carrier: Carrier, capabilities: Sequence[str]) -> Channel | None:
        """Returns a channel for a stream; None if one of its ends cannot use this kind.

        Args:
            carrier: The carrier of the stream.
            capabilities: The capabilities in the peer's hello.
        """

    def tick(self) -> None:
        """Releases memory that was unused for a while; called on the loop several times a beat."""
        return

    def close(self) -> None:
        """Releases all memory, once all streams have ended; not on the loop."""
        return


class Pieces(Protocol):
    """The pieces of one session, as lanes need them; see `session.Session`."""

    @property
    def pieces_waiting(self) -> bool:
        """True if `next_piece` would return a piece."""

    def next_piece(self, most: int) -> Piece | None:
        """Returns the next piece for a lane."""

    def announced(self, number: int) -> bool:
        """Returns True if an envelope is known."""

    def claim(self, piece: Span) -> memoryview | None:
        """Returns the memory for the bytes of a piece; None if they are not wanted any more."""

    def placed(self, piece: Span) -> Assembly | None:
        """Records that a claimed piece is in its place."""

    def given_back(self, piece: Span) -> Assembly | None:
        """Records that a claimed piece's bytes did not come."""

    def finish(self, number: int) -> list[Envelope]:
        """Ends an assembly that was joined."""
