"""The counters of one worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcStatistics:
    """The counters of an agent: the totals so far, and what it holds now.

    Attributes:
        calls_sent: Calls, creations and fetches made from here, those to itself included.
        calls_served: Calls that were answered here, with a value or an error.
        bytes_sent: Bytes that were written to other workers, protocol included.
        bytes_received: Bytes that were read from other workers, protocol included.
        pending_calls: Calls that wait for their reply now, with those that are not admitted yet, or
            wait for the return of a lost callee (`retry=`).
        waiting_calls: Those of them that are root calls which wait for admission; see `Limits`.
        admitted_bytes: Bytes, here or on their way now, of calls of others that had to ask.
        owned_rrefs: RRefs whose value lives here now.
        user_rrefs: RRefs held here now whose value lives elsewhere.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     rref = rpc.RRef([1, 2, 3])
        ...     rpc.statistics().owned_rrefs, rpc.statistics().pending_calls
        (1, 0)
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
