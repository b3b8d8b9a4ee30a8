"""A carrier that has proved itself, with its lanes, as the connection that it belongs to sees it."""

from __future__ import annotations

from typing import final

from telegrad.transport.audit import PEER_CUT_OFF, Audit
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.bulk_lanes import Lanes
from telegrad.transport.handshake import Frames
from telegrad.transport.tags import BadTagError
from telegrad.types import WorkerInfo
from telegrad.wire import DecodeLimits, Frame, unpack_frame

__all__ = ["Stream"]


@final
class Stream:
    """A carrier that has proved itself, with the tags of its frames.

    It and its lanes are one: when any of them breaks, all are let go.

    Args:
        carrier: What moves the bytes.
        frames: What seals and opens them.
        lanes: What big parts travel on beside it.
        preamble: What has to be sent before the first frame: a listener's welcome.
    """

    def __init__(
        self, carrier: Carrier, frames: Frames, lanes: Lanes, *, preamble: bytes = b""
    ) -> None:
        self.carrier = carrier
        self.frames = frames
        self.lanes = lanes
        self.preamble = preamble
        self.messages_taken = self.bytes_taken = self.frames_taken = 0

    @property
    def dialled(self) -> bool:
        """Whether this side dialled it."""
        return self.lanes.dialled

    def opened(self, message: bytes, limits: DecodeLimits) -> Frame:
        """Counts a message that came, and returns the frame in it.

        Raises:
            BadTagError: Its tag is wrong.
            DecodeError: It is no frame.
        """
        self.messages_taken += 1
        self.bytes_taken += len(message)
        return unpack_frame(self.frames.open(message), limits)

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
