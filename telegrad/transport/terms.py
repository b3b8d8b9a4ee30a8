"""What all connections of one worker share, and what they count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from telegrad.transport.audit import Audit
from telegrad.transport.base import Receiver, Transport
from telegrad.transport.bulk_thread import BulkThread
from telegrad.transport.handshake import Identity, itself
from telegrad.transport.limits import ConnectionLimits
from telegrad.transport.loop import LoopThread

__all__ = ["Counters", "Terms"]


@dataclass(slots=True)
class Counters:
    """What all connections of an exchange have moved.

    Frames and envelopes are counted in any thread, by methods; what is of lanes, on the loop alone.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    envelopes_sent: int = 0
    envelopes_received: int = 0
    writes: int = 0
    connections: int = 0
    lanes: int = 0
    chunks_sent: int = 0
    chunks_received: int = 0
    bulk_bytes_sent: int = 0
    bulk_bytes_received: int = 0
    lag: float = 0.0
    _frames_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def wrote(self, size: int, envelopes: int) -> None:
        """Counts a frame that leaves."""
        with self._frames_lock:
            self.writes += 1
            self.bytes_sent += size
            self.envelopes_sent += envelopes

    def read(self, size: int) -> None:
        """Counts a frame that came."""
        with self._frames_lock:
            self.bytes_received += size

    def handed_over(self, envelopes: int) -> None:
        """Counts envelopes that came whole."""
        with self._frames_lock:
            self.envelopes_received += envelopes


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
