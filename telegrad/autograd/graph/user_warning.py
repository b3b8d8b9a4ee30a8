"""Warnings whose place is the user's line, however many of telegrad's functions lie between."""

from __future__ import annotations

import sys
import warnings

_RUNS_THREADS = frozenset({"asyncio", "threading"})


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line on the stack that is not telegrad's.

    A thread of telegrad's that runs no code of a user's has no such line: then there is no warning.
    """
    level, frame = 1, sys._getframe()
    while _package(frame.f_globals) == "telegrad" and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    if _package(frame.f_globals) not in _RUNS_THREADS:
        warnings.warn(message, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
