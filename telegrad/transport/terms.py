"""What all connections of one worker share, and what they count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass, field
from typing import Any

from telegrad.transport.audit import Audit
from telegrad.transport.base import Receiver, Transport
from telegrad.transport.bulk_thread import BulkThread
from telegrad.transport.handle_set import HandleSet
from telegrad.transport.handshake import Identity, itself
from telegrad.transport.limits import ConnectionLimits
from telegrad.transport.loop import LoopThread
from telegrad.transport.slabs import SlabPool
from telegrad.wire import PIECE_BYTES

__all__ = ["Counters", "Terms"]


@dataclass(slots=True)
class Counters:
    """What all connections of an exchange count together; each counts its frames by itself.

    Chunks are counted in any thread, by methods; the others on the loop alone.
    """

    connections: int = 0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all connections of one worker share.

    Attributes:
        identity: Who this worker is.
        token: The job's; None in an insecure job.
        transports: By scheme.
        receiver: The floor above.
        lost_after: Seconds of silence after which a peer is lost.
        prove_within: Seconds that a handshake may take.
        clock: What liveness and deadlines read.
        load: How many calls this worker serves.
        loop: Where everything here runs.
        bulk: The thread that copies array bytes.
        spawn: Starts a task that the exchange awaits or cancels when it closes.
        counters: What is counted.
        audit: Where it is recorded who was admitted or refused.
        certified: Which name a peer's certificate has to hold, by the name that it says.
        limits: What others may take.
        slabs: The memory that is shared with workers of this host.
        handles: The sockets that threads read themselves.
        spin: Seconds for which a thread that waits looks before it sleeps.
        anywhere: Kinds of requests that the floor above takes in any thread.
    """

    identity: Identity
    token: bytes | None
    transports: dict[str, Transport]
    receiver: Receiver
    lost_after: float
    prove_within: float
    clock: Callable[[], float]
    load: Callable[[], int]
    loop: LoopThread
    bulk: BulkThread
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    counters: Counters = field(default_factory=Counters)
    audit: Audit = field(default_factory=Audit)
    certified: Callable[[str], str] = itself
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    slabs: SlabPool
    handles: HandleSet
    spin: float
    anywhere: Container[str]
