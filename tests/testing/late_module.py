"""Imported by the test alone, so that a worker process has to import it before it decodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Settings:
    """What travels."""

    rate: float


def rate_of(settings: Settings) -> float:
    """Returns what was sent."""
    return settings.rate
