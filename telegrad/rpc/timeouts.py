"""What a `timeout` argument may be, in one place for every verb."""

from __future__ import annotations

import math
import numbers

from telegrad.errors import CallTimeoutError

__all__ = ["not_done", "seconds"]


def seconds(timeout: float | None, default: float) -> float:
    """For the library: returns the limit in seconds that `timeout` asks for.

    Args:
        timeout: Seconds above 0, `math.inf` for no limit, or None for the default.
        default: What None stands for.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is 0, negative or not a number.

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
    """Returns the error of who has waited long enough for a future."""
    return CallTimeoutError(
        f"{label} was not done after {elapsed:.3g} s of wait(); it goes on, and may be waited for "
        "again",
        phase="waiting",
        elapsed=elapsed,
    )
