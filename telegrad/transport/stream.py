"""A carrier that has proved itself, with its lanes, as the connection that it belongs to sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from telegrad.transport.audit import PEER_CUT_OFF, Audit
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.bulk_lanes import Lanes
from telegrad.transport.slabs import SlabStream
from telegrad.transport.tags import BadTagError, Frames
from telegrad.types import WorkerInfo

__all__ = ["Stream", "StreamFrames"]


@final
class Stream:
    """A carrier that has proved itself, with the tags of its frames.

    It and its lanes are one: when any of them breaks, all are let go.

    Args:
        carrier: What moves the bytes.
        frames: What seals and opens them.
        lanes: What big parts travel on beside it.
        preamble: What has to be sent before the first frame: a listener's welcome.
        slabs: The memory that both ends share, where they do.

    Attributes:
        messages_taken: Messages that came; this and the next two by whoever reads.
        bytes_taken: Theirs.
        frames_taken: Of them, those that were frames and were taken.
        messages_sent: Messages that were sealed; this and the next by who has the writer's turn.
        bytes_sent: Theirs.
    """

    def __init__(
        self,
        carrier: Carrier,
        frames: Frames,
        lanes: Lanes,
        *,
        preamble: bytes = b"",
        slabs: SlabStream | None = None,
    ) -> None:
        self.carrier = carrier
        self.frames = frames
        self.lanes = lanes
        self.preamble = preamble
        self.slabs = slabs
        self.messages_taken = self.bytes_taken = self.frames_taken = 0
        self.messages_sent = self.bytes_sent = 0

    @property
    def dialled(self) -> bool:
        """Whether this side dialled it."""
        return self.lanes.dialled

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
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFrames:
    """One stream, as its pump sees it; see `pump.Frames`."""

    next_message: Callable[[], bytes | None]
    ending: Callable[[], bool]
    written: Callable[[], None]
    take: Callable[[bytes], bool]
    failed: Callable[[BaseException], None]
