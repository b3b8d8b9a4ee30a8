"""Runs a program in several workers: the command `telegrad run`, and `LocalWorkers`."""

from __future__ import annotations

from telegrad.launch.local_workers import LocalWorkers

__all__ = [
    "LocalWorkers",
]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
