"""The limits on calls under way, and on the resources that other workers may use of this one."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import final

from telegrad.errors import CallTimeoutError
from telegrad.wire import DecodeLimits

# -- the check of a `timeout` argument, in one place for every function --------------------------


def seconds(timeout: float | None, default: float) -> float:
    """For the library: returns a timeout in seconds.

    Args:
        timeout: Seconds above 0, `math.inf` for no limit, or None for the default.
        default: The default timeout.

    Raises:
        TypeError: The timeout is not a number, or is a bool.
        ValueError: The timeout is 0, negative or NaN.

    Example:
        >>> seconds(None, 60.0), seconds(1.5, 60.0)
        (60.0, 1.5)
    """
    if timeout is None:
        return default
    if type(timeout) is float and timeout > 0:
        return timeout
    given: object = timeout
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(
            f"timeout must be a number of seconds, not {given!r} ({type(given).__name__}); "
            "write timeout=None for the default or timeout=math.inf for no limit"
        )
    limit = float(timeout)
    if math.isnan(limit) or limit <= 0:
        raise ValueError(
            f"timeout must be above 0 seconds (got {timeout!r}); "
            "write timeout=math.inf to wait without a limit"
        )
    return limit


def not_done(label: str, elapsed: float) -> CallTimeoutError:
    """Returns the error for a wait that has reached its timeout."""
    return CallTimeoutError(
        f"{label} was not done after {elapsed:.3g} s of wait(); it goes on, and may be waited for "
        "again",
        phase="waiting",
        elapsed=elapsed,
    )


# -- the limits ----------------------------------------------------------------------------------

# A loop that calls without waiting fills its own memory, not the callee's (2 to 3 KiB a call
# there). At 100,000 calls/s and 10 ms each, 1,000 are pending: no program meets this by accident.
PENDING_CALLS_PER_PEER = 10_000
# Ten workers that push the gradients of 25 million float32 parameters at once; a host that runs a
# worker has this much to spare.
PENDING_BYTES = 2**30
# At 3 KiB each, 300 MB of one caller. Nested calls never wait, so one function may make many at
# once.
SERVED_CALLS_PER_PEER = 100_000
# Ten million floats with room to spare; more should be an array, which travels beside a document.
DOCUMENT_BYTES = 256 * 2**20
# More than any array of one host's memory; pages are taken as bytes arrive, not when announced.
MESSAGE_BYTES = 64 * 2**30

MOST = 2**62


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for root calls, and for other workers; immutable, checked when made.

    Unknown names are refused. A worker that sends more than the callee allows is refused, or cut
    off: so raise a limit on all workers together.

    A root call is a call by code that serves no call. Calls inside calls, replies, fetches and all
    messages of telegrad's own never wait, whatever the limits; nor does a call to the worker
    itself.

    Attributes:
        pending_calls_per_peer: The most unanswered root calls of this worker to one other; further
            ones wait here, in order.
        pending_bytes: The most bytes of calls with a permit that this worker takes in at once, from
            all others together. A larger call comes when no other one is in. A 256th of it is the
            most bytes of calls without a permit that this worker has under way to one other; these
            are sent at once and count in nobody's `pending_bytes`.
        served_calls_per_peer: The most calls of one worker that are served, or wait for a thread,
            at once; further ones fail with PoolExhaustedError. Twice as many replies, and at least
            1,000, may wait for a worker that does not take them; beyond that it is given up.
        document_bytes: The most bytes of one message without its arrays; this worker sends no
            larger one either. All containers of a message together may have one item for each 26
            of these bytes.
        message_bytes: The most bytes of one message with its arrays; this worker sends no larger
            one either.

    Example:
        >>> Limits(pending_bytes=256 * 2**20).pending_calls_per_peer
        10000
    """

    pending_calls_per_peer: int = PENDING_CALLS_PER_PEER
    pending_bytes: int = PENDING_BYTES
    served_calls_per_peer: int = SERVED_CALLS_PER_PEER
    document_bytes: int = DOCUMENT_BYTES
    message_bytes: int = MESSAGE_BYTES

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            check_integer(f"Limits.{name}", getattr(self, name), least, most)

    @property
    def received(self) -> DecodeLimits:
        """The limits of one received message."""
        return DecodeLimits(document_bytes=self.document_bytes, message_bytes=self.message_bytes)


# The least values; telegrad's own messages fit into them.
_RANGES = {
    "pending_calls_per_peer": (1, MOST),
    "pending_bytes": (1, MOST),
    "served_calls_per_peer": (1, MOST),
    "document_bytes": (2**16, 2**32 - 1),
    "message_bytes": (2**20, MOST),
}


def check_integer(label: str, value: object, least: int, most: int) -> None:
    """Checks an option.

    Raises:
        TypeError: The value is no integer, or a bool.
        ValueError: The value is less than `least` or more than `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{label} must be an integer, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{label} must be from {least} to {most} (got {value})")
