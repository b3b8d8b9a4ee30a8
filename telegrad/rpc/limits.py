"""How much may be under way before root calls wait."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from telegrad.rpc.timeouts import seconds

__all__ = ["Limits", "check_integer"]

# A loop that calls without waiting fills its own memory, not the callee's (2 to 3 KiB a call
# there). At 100,000 calls/s and 10 ms each, 1,000 are pending: no program meets this by accident.
PENDING_CALLS_PER_PEER = 10_000
# Ten workers that push the gradients of 25 million float32 parameters at once; a host that runs a
# worker has it to spare.
PENDING_BYTES = 2**30
# Asking is a round trip: 200 calls of 16 KiB at once took 36 ms within an allowance of 4 MiB, 61 ms
# within 1 MiB, over loopback on two cores; one call of 2 MiB took 2.7 ms, 3.4 ms when it had to
# ask. Ten peers that do not ask hold 40 MiB.
ALLOWANCE_BYTES = 4 * 2**20
# Longer than most functions work on big arguments, shorter than anyone takes for a hang.
STALLED_AFTER = 1.0

MOST = 2**62


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What root calls wait for; immutable, checked when made. Unknown names are refused.

    A root call is one by code that serves no call. Calls inside calls, replies, fetches and all
    messages of telegrad's own never wait, whatever is set here; nor does a call to oneself.

    Attributes:
        pending_calls_per_peer: Root calls of this worker to one other that may be unanswered at
            once; further ones wait here, in order.
        pending_bytes: What this worker takes in at once, from all others together, of calls
            that had to ask. A call that is larger comes when nothing else is in.
        allowance_bytes: What this worker has under way to one other without asking. Calls that
            fit into it are sent at once and count in nobody's `pending_bytes`.
        stalled_after: Seconds after which this worker takes in one more call than
            `pending_bytes` allows, when those that are in do not end: they may wait for it.
            `math.inf` for never.

    Example:
        >>> Limits(pending_bytes=256 * 2**20).pending_calls_per_peer
        10000
    """

    pending_calls_per_peer: int = PENDING_CALLS_PER_PEER
    pending_bytes: int = PENDING_BYTES
    allowance_bytes: int = ALLOWANCE_BYTES
    stalled_after: float = STALLED_AFTER

    def __post_init__(self) -> None:
        least = {"pending_calls_per_peer": 1, "pending_bytes": 1, "allowance_bytes": 0}
        for name, at_least in least.items():
            check_integer(f"Limits.{name}", getattr(self, name), at_least, MOST)
        try:
            seconds(self.stalled_after, math.inf)
        except (TypeError, ValueError) as error:
            raise type(error)(f"Limits.stalled_after: {error}") from None


def check_integer(label: str, value: object, least: int, most: int) -> None:
    """Checks an option.

    Raises:
        TypeError: It is no integer, or a bool.
        ValueError: It is less than `least` or more than `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{label} must be an integer, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{label} must be from {least} to {most} (got {value})")
