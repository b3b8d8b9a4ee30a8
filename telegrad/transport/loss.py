"""Why a peer was given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from telegrad.errors import UnreachableWorkerError, WorkerLostError
from telegrad.types import WorkerInfo

__all__ = ["Loss"]


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
