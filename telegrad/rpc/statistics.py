"""Counters of one worker."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RpcStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcStatistics:
    """What an agent has done so far, and what it holds now.

    Attributes:
        calls_sent: Calls, creations and fetches made from here, those to itself included.
        calls_served: Those answered here, with a value or an error.
        bytes_sent: Written to other workers, protocol included.
        bytes_received: Read from other workers, protocol included.
        pending_calls: Calls that wait for their reply now, those included that are not admitted
            yet, or wait for the return of a lost callee (`retry=`).
        waiting_calls: Of those, root calls that wait for admission; see `Limits`.
        admitted_bytes: Of calls of others that had to ask, what is here or on its way now.
        owned_rrefs: RRefs whose value lives here now.
        user_rrefs: RRefs held here now whose value lives elsewhere.
    """

    calls_sent: int
    calls_served: int
    bytes_sent: int
    bytes_received: int
    pending_calls: int
    waiting_calls: int
    admitted_bytes: int
    owned_rrefs: int
    user_rrefs: int
