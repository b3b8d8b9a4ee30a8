"""What all connections of one worker share, and what they count."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from telegrad.transport.base import Receiver, Transport
from telegrad.transport.channels.base import Counters
from telegrad.transport.channels.bulk_thread import BulkThread
from telegrad.transport.channels.table import Channels
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.transport.limits import HANDSHAKE_SECONDS, ConnectionLimits
from telegrad.transport.loop import LoopThread
from telegrad.transport.security.audit import Audit
from telegrad.transport.security.handshake import Identity, itself

__all__ = [
    "Credentials",
    "ExchangeStatistics",
    "Moved",
    "Terms",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a worker proves itself with in handshakes, and asks of others.

    Attributes:
        identity: Who this worker is.
        token: The job's; None in an insecure job.
        certified: Which name a peer's certificate has to hold, by the name that it says.
        seconds: How long a handshake may take.
    """

    identity: Identity
    token: bytes | None
    certified: Callable[[str], str] = itself
    seconds: float = HANDSHAKE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all connections of one worker share.

    Attributes:
        credentials: What this worker proves itself with, and asks of others.
        transports: By scheme.
        receiver: The floor above.
        lost_after: Seconds of silence after which a peer is lost.
        clock: What liveness and deadlines read.
        loop: Where everything here runs.
        spawn: Starts a task that the exchange awaits or cancels when it closes.
        audit: Where it is recorded who was admitted or refused.
        limits: What others may take.
        channels: What moves big parts beside the control streams.
        reader: Reads the sockets past gRPC.
    """

    credentials: Credentials
    transports: dict[str, Transport]
    receiver: Receiver
    lost_after: float
    clock: Callable[[], float]
    loop: LoopThread
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    audit: Audit = field(default_factory=Audit)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    channels: Channels
    reader: SocketReader

    @property
    def bulk(self) -> BulkThread:
        """The thread that copies array bytes."""
        return self.channels.means.bulk

    @property
    def counters(self) -> Counters:
        """The counts of all connections together."""
        return self.channels.means.counters


# -- counters of an exchange ---------------------------------------------------------------------


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
