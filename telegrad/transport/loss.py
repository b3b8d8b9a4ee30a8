"""Why a peer was given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from telegrad.errors import WorkerLostError
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
    """

    reason: str
    silence: float
    left: bool = False
    fenced: bool = False

    def error(self, peer: WorkerInfo) -> WorkerLostError:
        """Returns a new exception."""
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
