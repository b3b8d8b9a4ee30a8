"""The parts that all connections of one worker share, and their counters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from telegrad.transport.base import Receiver, Transport
from telegrad.transport.channels.base import Counters, Means
from telegrad.transport.channels.shared_memory import SlabPool
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.transport.limits import ConnectionLimits
from telegrad.transport.loop import LoopThread
from telegrad.transport.security.audit import Audit
from telegrad.transport.security.handshake import Identity, itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The proof of a worker's identity in handshakes, and the proof that it asks of others.

    Attributes:
        identity: This worker.
        token: The job's token; None in an insecure job.
        certified: Returns the name that a peer's certificate has to hold, from the name that it
            claims.
    """

    identity: Identity
    token: bytes | None
    certified: Callable[[str], str] = itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parts that all connections of one worker share.

    Attributes:
        credentials: The proof of this worker's identity, and the proof that it asks of others.
        transports: The transports by scheme.
        receiver: The layer above.
        lost_after: Seconds of silence after which a peer is lost.
        clock: The clock of liveness and deadlines.
        loop: The loop thread on which everything here runs.
        spawn: Starts a task that the exchange awaits or cancels when it closes.
        audit: The log of workers that were admitted or refused.
        limits: The limits on what others may use.
        means: The parts that the lanes share.
        slabs: The memory that workers of one host share.
        reader: Reads the sockets that bypass gRPC.
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
    means: Means
    slabs: SlabPool
    reader: SocketReader

    @property
    def counters(self) -> Counters:
        """The counts of all connections together."""
        return self.means.counters


# -- counters of an exchange ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExchangeStatistics:
    """The totals that an exchange, or one of its connections, has moved so far.

    Attributes:
        bytes_sent: Bytes of frames, chunks and shared memory, tags and headers included.
        bytes_received: Bytes of frames, chunks and shared memory, tags and headers included.
        envelopes_sent: Envelopes that were written; one that was sent again counts again.
        envelopes_received: Envelopes that were handed over.
        connections: Control streams that came up.
        writes: Frames; envelopes_sent / writes is how well they coalesce.
        lanes: Bulk lanes that came up.
        chunks_sent: Pieces of 1 MiB of big parts; one that was sent again counts again.
        chunks_received: Pieces that came, known ones included.
        bulk_bytes_sent: Those of bytes_sent that went by lanes.
        bulk_bytes_received: Those of bytes_received that came by lanes.
        slab_bytes_sent: Those of bytes_sent that went as memory that both ends share.
        slab_bytes_received: Those of bytes_received that came as such memory.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    envelopes_sent: int = 0
    envelopes_received: int = 0
    connections: int = 0
    writes: int = 0
    lanes: int = 0
    chunks_sent: int = 0
    chunks_received: int = 0
    bulk_bytes_sent: int = 0
    bulk_bytes_received: int = 0
    slab_bytes_sent: int = 0
    slab_bytes_received: int = 0

    def __add__(self, other: ExchangeStatistics) -> ExchangeStatistics:
        """Returns the sum of both totals."""
        names = ExchangeStatistics.__dataclass_fields__
        return ExchangeStatistics(*(getattr(self, name) + getattr(other, name) for name in names))
