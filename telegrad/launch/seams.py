"""The parts of the launcher that the doctor uses; not for users."""

from __future__ import annotations

from telegrad.launch.log_relay import LogRelay
from telegrad.launch.run import Refusals, RunOptions, run

__all__ = [
    "LogRelay",
    "Refusals",
    "RunOptions",
    "run",
]
