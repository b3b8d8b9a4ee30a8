"""How an agent comes by its Exchange without knowing transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from telegrad.transport import Exchange, Receiver

__all__ = ["OpenExchange"]


class OpenExchange(Protocol):
    """Makes the agent's Exchange; the composition root knows transports and credentials."""

    def __call__(self, *, receiver: Receiver, load: Callable[[], int]) -> Exchange:
        """Returns an Exchange that hands what arrives to `receiver`."""
