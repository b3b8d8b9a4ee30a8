"""Why a peer was given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from telegrad.errors import UnreachableWorkerError, WorkerLostError
from telegrad.types import WorkerInfo

__all__ = ["Loss", "without_carrier"]

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
