"""What an exchange tells of what it has moved."""

from __future__ import annotations

from dataclasses import dataclass

from telegrad.transport.terms import Counters

__all__ = ["ExchangeStatistics", "Moved"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What one connection, or several, have moved by frames.

    Attributes:
        bytes_sent: Tags included.
        bytes_received: Tags included.
        envelopes_sent: Written, once more for each time that one was sent again.
        envelopes_received: Complete.
        writes: Frames that were written.
        slab_bytes_sent: What the peer got as memory that both share.
        slab_bytes_received: What came as such.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    envelopes_sent: int = 0
    envelopes_received: int = 0
    writes: int = 0
    slab_bytes_sent: int = 0
    slab_bytes_received: int = 0

    def __add__(self, other: Moved) -> Moved:
        """Returns what both have moved together."""
        return Moved(
            self.bytes_sent + other.bytes_sent,
            self.bytes_received + other.bytes_received,
            self.envelopes_sent + other.envelopes_sent,
            self.envelopes_received + other.envelopes_received,
            self.writes + other.writes,
            self.slab_bytes_sent + other.slab_bytes_sent,
            self.slab_bytes_received + other.slab_bytes_received,
        )


@dataclass(frozen=True, slots=True)
class ExchangeStatistics:
    """What an exchange has moved so far, with all peers together.

    Attributes:
        bytes_sent: Of frames, chunks and shared memory, tags and headers included.
        bytes_received: Of frames, chunks and shared memory, tags and headers included.
        envelopes_sent: Written, once more for each time that one was sent again.
        envelopes_received: Handed over.
        connections: Control streams that came up.
        writes: Frames; envelopes_sent / writes is how well they coalesce.
        lanes: Bulk lanes that came up.
        chunks_sent: Pieces of 1 MiB of big parts, once more for each time that one was sent again.
        chunks_received: Pieces that came, known ones included.
        bulk_bytes_sent: Of bytes_sent, what went by lanes.
        bulk_bytes_received: Of bytes_received, what came by lanes.
        slab_bytes_sent: Of bytes_sent, what went as memory that both ends share.
        slab_bytes_received: Of bytes_received, what came as such.
    """

    bytes_sent: int
    bytes_received: int
    envelopes_sent: int
    envelopes_received: int
    connections: int
    writes: int
    lanes: int
    chunks_sent: int
    chunks_received: int
    bulk_bytes_sent: int
    bulk_bytes_received: int
    slab_bytes_sent: int
    slab_bytes_received: int

    @classmethod
    def of(cls, counters: Counters, frames: Moved) -> ExchangeStatistics:
        """Returns what the counters say now, and what went by frames."""
        return cls(
            bytes_sent=frames.bytes_sent + counters.bulk_bytes_sent + frames.slab_bytes_sent,
            bytes_received=frames.bytes_received
            + counters.bulk_bytes_received
            + frames.slab_bytes_received,
            envelopes_sent=frames.envelopes_sent,
            envelopes_received=frames.envelopes_received,
            connections=counters.connections,
            writes=frames.writes,
            lanes=counters.lanes,
            chunks_sent=counters.chunks_sent,
            chunks_received=counters.chunks_received,
            bulk_bytes_sent=counters.bulk_bytes_sent,
            bulk_bytes_received=counters.bulk_bytes_received,
            slab_bytes_sent=frames.slab_bytes_sent,
            slab_bytes_received=frames.slab_bytes_received,
        )
