"""The counters and the threads that the channels of one worker share, and a session's pieces.

    part of an envelope ──▶ in-line        parts of 64 KiB and less, in their frame
                        ──▶ shared memory  (`shared_memory`), where both ends map it
                        ──▶ lanes          (`lanes`), all other parts, in pieces of 1 MiB at most;
                                           where none can be opened, the pieces travel in frames

The memory and the lanes of a stream end with it. The news for the other end travels in frames: of
memory as `wire.Lending`, of lanes as announcements and in heartbeats.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, final

from telegrad.critical import critical
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.host import start_thread
from telegrad.transport.loop import LoopThread, handing_context
from telegrad.wire import (
    PIECE_BYTES,
    Assembly,
    Envelope,
    Piece,
    Span,
)

LANE = "telegrad-lane"
STOP_SECONDS = 5.0  # the longest wait of a close for the ends of all chunks that are under way


@dataclass(slots=True)
class Counters:
    """The counts of all connections of an exchange; each connection counts its frames itself.

    Any thread counts chunks, by methods. The loop alone counts the others.
    """

    connections: int = 0
    kept_on_grpc: int = 0  # connections that could not move to a socket
    laneless: int = 0  # peers to which no lane could be opened
    lanes: int = 0
    chunks_sent: int = 0
    chunks_received: int = 0
    bulk_bytes_sent: int = 0
    bulk_bytes_received: int = 0
    lag: float = 0.0
    _chunks_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def chunk_left(self, size: int, offset: int) -> None:
        """Counts a chunk that went by a lane, as one if it begins a MiB of its part."""
        with critical.section, self._chunks_lock:
            self.chunks_sent += offset % PIECE_BYTES == 0
            self.bulk_bytes_sent += size

    def chunk_came(self, size: int, offset: int) -> None:
        """Counts a chunk that came by a lane, as one if it begins a MiB of its part."""
        with critical.section, self._chunks_lock:
            self.chunks_received += offset % PIECE_BYTES == 0
            self.bulk_bytes_received += size


@final
class LaneThreads:
    """The threads that make and place the chunks of one worker's lanes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next two
        self._running: set[threading.Thread] = set()
        self._closed = False

    def start(self, function: Callable[[], None]) -> None:
        """Runs a function in a daemon thread of its own, unless this is closed.

        User code never runs there, as a callback that calls the peer would wait for its own lane:
        the thread hands messages over for others. The caller has to end the function before
        `close`.

        Raises:
            CarrierClosedError: The system starts no more threads.
        """
        run = partial(handing_context().run, self._run, function)
        thread = threading.Thread(target=run, name=LANE, daemon=True)
        with critical.section, self._lock:
            if self._closed:
                return
            try:
                start_thread(thread)
            except RuntimeError as error:
                raise CarrierClosedError(f"a bulk lane lacks a thread: {error}") from error
            self._running.add(thread)

    def close(self) -> None:
        """Waits for the threads, and starts no more. Idempotent."""
        with critical.section, self._lock:
            running = list(self._running)
            self._closed = True
        deadline = time.monotonic() + STOP_SECONDS
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        finally:
            with critical.section, self._lock:
                self._running.discard(threading.current_thread())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The parts that the channels of one worker share.

    Attributes:
        loop: The loop thread that owns the sockets.
        spawn: Starts a task that the exchange awaits or cancels when it closes.
        clock: The clock of liveness and deadlines.
        threads: The threads of lanes.
        counters: The counts of the worker.
    """

    loop: LoopThread
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    clock: Callable[[], float]
    threads: LaneThreads = field(default_factory=LaneThreads)
    counters: Counters = field(default_factory=Counters)


class Pieces(Protocol):
    """The pieces of one session, as lanes need them; see `session.Session`."""

    @property
    def cutting(self) -> Sized:
        """The pieces for `next_piece`; empty if it would return None."""

    def next_piece(self, most: int) -> Piece | None:
        """Returns the next piece for a lane."""

    def announced(self, number: int) -> bool:
        """Returns True if an envelope is known."""

    def claim(self, piece: Span) -> memoryview | None:
        """Returns the memory for the bytes of a piece; None if they are not wanted any more."""

    def settle(self, piece: Span, *, came: bool) -> Assembly | None:
        """Ends the claim of a piece."""

    def finish(self, number: int) -> list[Envelope]:
        """Ends an assembly that was joined."""

    def give_up(self, number: int, error: MemoryError) -> list[Envelope]:
        """Ends an assembly for which there is no memory."""
