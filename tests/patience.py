"""Time limits of tests: a short one first, longer ones for a machine that was busy just then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def with_more_time(attempt: Callable[[float], T], *seconds: float) -> T:
    """Runs an attempt under one limit after the other until it passes; returns what it returns.

    For what has to happen before a limit that the test itself sets. What is wrong is wrong under
    the longest limit, too, and fails there.

    Args:
        attempt: Is given the limit; fails by AssertionError.
        *seconds: The limits, ever longer.
    """
    *shorter, longest = seconds
    for limit in shorter:
        try:
            return attempt(limit)
        except AssertionError as error:
            print(f"not within {limit:g} s, once more with a longer limit: {error}")  # noqa: T201
    return attempt(longest)
