"""What an exchange tells of what it has moved."""

from __future__ import annotations

from dataclasses import dataclass

from telegrad.transport.terms import Counters

__all__ = ["ExchangeStatistics"]


@dataclass(frozen=True, slots=True)
class ExchangeStatistics:
    """What an exchange has moved so far, with all peers together.

    Attributes:
        bytes_sent: Of frames and chunks, tags and headers included.
        bytes_received: Of frames and chunks, tags and headers included.
        envelopes_sent: Written, once more for each time that one was sent again.
        envelopes_received: Handed over.
        connections: Control streams that came up.
        writes: Frames; envelopes_sent / writes is how well they coalesce.
        lanes: Bulk lanes that came up.
        chunks_sent: Pieces of big parts, once more for each time that one was sent again.
        chunks_received: Pieces that came, known ones included.
        bulk_bytes_sent: Of bytes_sent, what went by lanes.
        bulk_bytes_received: Of bytes_received, what came by lanes.
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

    @classmethod
    def of(cls, counters: Counters) -> ExchangeStatistics:
        """Returns what the counters say now."""
        return cls(
            bytes_sent=counters.bytes_sent + counters.bulk_bytes_sent,
            bytes_received=counters.bytes_received + counters.bulk_bytes_received,
            envelopes_sent=counters.envelopes_sent,
            envelopes_received=counters.envelopes_received,
            connections=counters.connections,
            writes=counters.writes,
            lanes=counters.lanes,
            chunks_sent=counters.chunks_sent,
            chunks_received=counters.chunks_received,
            bulk_bytes_sent=counters.bulk_bytes_sent,
            bulk_bytes_received=counters.bulk_bytes_received,
        )
