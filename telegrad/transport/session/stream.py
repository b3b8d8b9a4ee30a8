"""A carrier that has proved itself, with its lanes, as its connection sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from telegrad.errors import DecodeError, UnreachableWorkerError, WorkerLostError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.channels.lanes import Lanes
from telegrad.transport.channels.shared_memory import SlabStream
from telegrad.transport.io.pump import Pump
from telegrad.transport.security.audit import PEER_CUT_OFF, Audit
from telegrad.transport.security.tags import BadTagError, Frames
from telegrad.transport.session.terms import ExchangeStatistics
from telegrad.types import WorkerInfo
from telegrad.wire import NO_MEMORY, Frame, Memory


@final
class Stream:
    """A carrier that has proved itself, the tags of its frames, its lanes and its shared memory.

    They are one: when any of them breaks, all are let go.

    Args:
        carrier: Moves the bytes.
        frames: Seals and opens the frames.
        lanes: The lanes for big parts that do not lie in shared memory.
        slabs: The memory that both ends share; None where they share none.

    Attributes:
        memory: The memory in which values that go to the peer next may be put.
        messages_taken: Messages that came; this and the next two are written by the reading thread.
        bytes_taken: The bytes of those messages.
        frames_taken: Those of the messages that were frames and were taken.
        messages_sent: Messages that were sealed; this and the next are written by the thread that
            has the writer's turn.
        bytes_sent: The bytes of those messages.
        news_due: True if there is news of shared memory or lanes that the peer should hear now, or
            a piece that finds no lane; this and the next are guarded by the connection's lock.
        laneless: True while the pieces of big parts go in frames, since no lane can be opened.
        pump: Moves its messages. `Carriers.adopt` sets this and the four methods that the pump
            calls (`pump.StreamEnd`).
        ending: True if the pump tells when the message last returned has left.
    """

    pump: Pump
    next_message: Callable[[], bytes | None]
    written: Callable[[], None]
    take: Callable[[bytes], bool]
    failed: Callable[[BaseException], None]

    def __init__(
        self, carrier: Carrier, frames: Frames, lanes: Lanes, slabs: SlabStream | None = None
    ) -> None:
        self.ending = False
        self.carrier = carrier
        self.frames = frames
        self.lanes = lanes
        self.slabs = slabs
        self.memory: Memory = NO_MEMORY if slabs is None else slabs
        self.messages_taken = self.bytes_taken = self.frames_taken = 0
        self.messages_sent = self.bytes_sent = 0
        self.news_due = self.laneless = False

    @property
    def dialled(self) -> bool:
        """True if this side dialled it."""
        return self.lanes.dialled

    def take_lent(self, frame: Frame) -> None:
        """Puts the parts that the peer has lent into the envelopes of a frame.

        Raises:
            DecodeError: The two ends share no memory, or the frame says something impossible.
            CarrierClosedError: This process has no room for the parts.
        """
        if self.slabs is None:
            raise DecodeError("a frame speaks of shared memory on a stream that has none")
        self.slabs.read(frame)

    def look_for_news(self) -> None:
        """Notes if the peer should hear news of shared memory now. The caller holds the lock."""
        if self.slabs is not None and self.slabs.due:
            self.news_due = True

    def look_for_lanes(self, frame: Frame) -> None:
        """Notes if the dialler of this stream has no lanes. The caller holds the lock."""
        laneless = frame.laneless is not None
        if not self.dialled and laneless is not self.laneless:
            self.laneless = self.news_due = laneless
            if not laneless:
                self.lanes.wake()  # pieces that were left for frames

    def stop_lending(self) -> None:
        """Lets go of the shared memory. Idempotent."""
        if self.slabs is not None:
            self.slabs.close()

    def moved(self) -> ExchangeStatistics:
        """Returns the totals of its frames, and of the parts that lay in shared memory."""
        slabs = self.slabs
        sent, received = (0, 0) if slabs is None else (slabs.bytes_sent, slabs.bytes_received)
        return ExchangeStatistics(
            bytes_sent=self.bytes_sent + sent,
            bytes_received=self.bytes_taken + received,
            writes=self.messages_sent,
            slab_bytes_sent=sent,
            slab_bytes_received=received,
        )

    def record_cut_off(self, audit: Audit, peer: WorkerInfo, error: Exception) -> None:
        """Records that a peer is cut off for data that it sent, and how much was read."""
        if isinstance(error, CarrierClosedError):
            return
        audit.record(
            PEER_CUT_OFF,
            peer=peer.name,
            rank=peer.rank,
            incarnation=peer.incarnation,
            address=self.carrier.description,
            reason="TAG" if isinstance(error, BadTagError) else "PROTOCOL",
            words=str(error),
            messages=self.messages_taken,
            bytes=self.bytes_taken,
        )


# -- the reason why a peer was given up ----------------------------------------------------------

LET_IN: Final = (
    "if a firewall lets nothing in there, open that port, which RpcOptions(port=...) chooses, or "
    "start that worker with RpcOptions(port=None)"
)


@final
@dataclass(frozen=True, slots=True)
class Loss:
    """The reason why a peer was given up; every caller gets an exception of its own.

    Attributes:
        reason: The reason, in words.
        silence: Seconds since the peer was last heard.
        left: True if the peer said goodbye.
        fenced: True if the peer had given up this worker first.
        unreachable: True if the peer lives, and neither side can dial the other.
    """

    reason: str
    silence: float
    left: bool = False
    fenced: bool = False
    unreachable: bool = False

    def error(self, peer: WorkerInfo) -> WorkerLostError:
        """Returns a new exception."""
        if self.unreachable:
            return UnreachableWorkerError(
                f"worker {peer.name!r} (incarnation {peer.incarnation}) cannot be reached: "
                f"{self.reason}",
                worker=peer.name,
                incarnation=peer.incarnation,
                reason=self.reason,
            )
        return WorkerLostError(
            f"worker {peer.name!r} (incarnation {peer.incarnation}) is lost: {self.reason}; "
            f"last heard {self.silence:.1f} s ago",
            worker=peer.name,
            incarnation=peer.incarnation,
            last_seen=self.silence,
            reason=self.reason,
            left=self.left,
            fenced=self.fenced,
        )


def breakage(at: float, how: str, now: float) -> str:
    """Returns words on how the last carrier broke, which tell why a living peer was given up.

    >>> breakage(0.0, "", 7.0), breakage(6.5, "connection reset", 7.0)
    ('', '; its last connection broke 0.5 s before (connection reset)')

    Args:
        at: The time of the break.
        how: The reason, in words; empty if none broke.
        now: The time of the loss.
    """
    return f"; its last connection broke {now - at:.1f} s before ({how})" if how else ""


def without_carrier(
    endpoints: Sequence[str], failure: str, *, ever: bool, kept_out: bool = True
) -> str:
    """Returns words on a peer that is silent while no connection to it is up.

    Args:
        endpoints: The addresses where it listens.
        failure: The reason why the last dial failed; empty while the first is under way.
        ever: True if there was a connection before.
        kept_out: True if a firewall may be the reason.

    >>> without_carrier([], "", ever=True)
    ' (it does not listen here, and dialled no more)'
    >>> without_carrier(["grpc://10.0.0.5:29501"], "", ever=False)[:53]
    ' (never connected; no answer from grpc://10.0.0.5:295'
    """
    if endpoints and not ever:
        found = f"last dial: {failure}" if failure else f"no answer from {', '.join(endpoints)}"
        return f" (never connected; {found}{f'; {LET_IN}' if kept_out else ''})"
    if failure:
        return f" (last dial: {failure})"
    return "" if endpoints else " (it does not listen here, and dialled no more)"
