"""How an agent comes by its Exchange without knowing transports."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from telegrad.rpc.limits import Limits
from telegrad.transport import ConnectionLimits, Exchange, Receiver

__all__ = ["OpenExchange", "connection_limits"]

# Receipts come with what the peer writes, else after 64 messages: an honest one may owe a few hundred.
LEAST_UNREAD_REPLIES = 1000


class OpenExchange(Protocol):
    """For the library: makes the agent's Exchange, from transports and credentials."""

    def __call__(
        self, *, receiver: Receiver, load: Callable[[], int], anywhere: Container[str]
    ) -> Exchange:
        """Returns an Exchange that hands what arrives to `receiver`, some kinds in any thread."""


def connection_limits(limits: Limits) -> ConnectionLimits:
    """For the library: returns those of an agent's limits that are its transport's."""
    return ConnectionLimits(
        connections=limits.connections,
        unproved=limits.unproved_streams,
        handshake_bytes=limits.handshake_bytes,
        handshake_seconds=limits.handshake_seconds,
        unread_replies=max(2 * limits.served_calls_per_peer, LEAST_UNREAD_REPLIES),
        received=limits.received,
    )
