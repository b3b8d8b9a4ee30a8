"""A carrier that has proved itself, with its lanes, as the connection that it belongs to sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from telegrad.errors import DecodeError, UnreachableWorkerError, WorkerLostError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.channels.base import Channel
from telegrad.transport.channels.lanes import Lanes
from telegrad.transport.security.audit import PEER_CUT_OFF, Audit
from telegrad.transport.security.tags import BadTagError, Frames
from telegrad.transport.session.terms import Moved
from telegrad.types import WorkerInfo
from telegrad.wire import NO_MEMORY, Envelope, Frame, Lent, Memory

__all__ = [
    "Loss",
    "Stream",
    "StreamFrames",
    "breakage",
    "without_carrier",
]


@final
class Stream:
    """A carrier that has proved itself, with the tags of its frames, and the channels beside it.

    They are one: when any of them breaks, all are let go.

    Args:
        carrier: What moves the bytes.
        frames: What seals and opens them.
        lanes: The channel for parts that no other channel lends.
        preamble: What has to be sent before the first frame: a listener's welcome.
        lenders: The channels that lend parts, in the order in which they are asked.

    Attributes:
        channels: The lenders and the lanes.
        messages_taken: Messages that came; this and the next two by whoever reads.
        bytes_taken: Theirs.
        frames_taken: Of them, those that were frames and were taken.
        messages_sent: Messages that were sealed; this and the next by who has the writer's turn.
        bytes_sent: Theirs.
        news_due: True if a channel has news that the peer should hear now; guarded by the
            connection's lock.
    """

    def __init__(
        self,
        carrier: Carrier,
        frames: Frames,
        lanes: Lanes,
        *,
        preamble: bytes = b"",
        lenders: tuple[Channel, ...] = (),
    ) -> None:
        self.carrier = carrier
        self.frames = frames
        self.lanes = lanes
        self.preamble = preamble
        self.lenders = lenders
        self.channels: tuple[Channel, ...] = (*lenders, lanes)
        self.messages_taken = self.bytes_taken = self.frames_taken = 0
        self.messages_sent = self.bytes_sent = 0
        self.news_due = False

    @property
    def dialled(self) -> bool:
        """Whether this side dialled it."""
        return self.lanes.dialled

    def lend(self, envelope: Envelope) -> dict[int, Lent]:
        """Lends the parts of an envelope, each by the first channel that has it."""
        lent: dict[int, Lent] = {}
        for channel in self.lenders:
            lent = channel.lend(envelope) | lent
        return lent

    def take_lent(self, frame: Frame) -> None:
        """Puts the parts that the peer has lent into the envelopes of a frame.

        Raises:
            DecodeError: No channel of this stream lends, or the frame says what cannot be.
            CarrierClosedError: This process has no room for the parts.
        """
        if not self.lenders:
            raise DecodeError("a frame speaks of shared memory on a stream that has none")
        for channel in self.lenders:
            channel.read(frame)

    def memory(self) -> Memory:
        """Returns the memory in which values that go to the peer next may be put."""
        return self.lenders[0].memory() if self.lenders else NO_MEMORY

    def moved(self) -> Moved:
        """Returns what went by its frames, and what its channels lent."""
        return Moved(
            self.bytes_sent,
            self.bytes_taken,
            writes=self.messages_sent,
            slab_bytes_sent=sum(each.bytes_sent for each in self.lenders),
            slab_bytes_received=sum(each.bytes_received for each in self.lenders),
        )

    def record_cut_off(self, audit: Audit, peer: WorkerInfo, error: Exception) -> None:
        """Records, where it is for what it sent, that a peer is cut off, and how much was read."""
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


@final
@dataclass(slots=True, kw_only=True)
class StreamFrames:
    """One stream, as its pump sees it; see `pump.Frames`."""

    next_message: Callable[[], bytes | None]
    written: Callable[[], None]
    take: Callable[[bytes], bool]
    failed: Callable[[BaseException], None]
    ending: bool = False


# -- why a peer was given up ---------------------------------------------------------------------

LET_IN: Final = (
    "if a firewall lets nothing in there, open that port, which RpcOptions(port=...) chooses, or start "
    "that worker with RpcOptions(listen=False)"
)


@final
@dataclass(frozen=True, slots=True)
class Loss:
    """Why a peer was given up; each who asks gets an exception of its own.

    Attributes:
        reason: In words.
        silence: Seconds since it was last heard.
        left: Whether it said goodbye.
        fenced: Whether it had given up this worker first.
        unreachable: Whether it lives, and neither side can dial the other.
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
    """Returns how the last carrier broke: why a living peer was given up is found by that.

    >>> breakage(0.0, "", 7.0), breakage(6.5, "connection reset", 7.0)
    ('', '; its last connection broke 0.5 s before (connection reset)')

    Args:
        at: When it broke.
        how: Why, in words; empty if none broke.
        now: The time of the loss.
    """
    return f"; its last connection broke {now - at:.1f} s before ({how})" if how else ""


def without_carrier(endpoints: Sequence[str], failure: str, *, ever: bool) -> str:
    """Returns what is to be said of a peer that is silent while no connection to it is up.

    Args:
        endpoints: Where it listens.
        failure: How the last dial ended; empty while the first is under way.
        ever: Whether there was a connection before.

    >>> without_carrier([], "", ever=True)
    ' (it does not listen here, and dialled no more)'
    >>> without_carrier(["grpc://10.0.0.5:29501"], "", ever=False)[:53]
    ' (never connected; no answer from grpc://10.0.0.5:295'
    """
    if endpoints and not ever:
        found = f"last dial: {failure}" if failure else f"no answer from {', '.join(endpoints)}"
        return f" (never connected; {found}; {LET_IN})"
    if failure:
        return f" (last dial: {failure})"
    return "" if endpoints else " (it does not listen here, and dialled no more)"
