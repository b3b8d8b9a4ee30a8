"""A transport that can die as a process does: everything breaks at once and nobody says goodbye."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from telegrad.transport import Carrier, Listener, Transport

__all__ = ["KillableTransport"]


@final
class KillableTransport(Transport):
    """Another transport, until it is killed.

    Args:
        inner: What makes the carriers.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._dead = False
        self._open: list[Carrier | Listener] = []

    @property
    def scheme(self) -> str:
        """That of the inner transport."""
        return self._inner.scheme

    @property
    def schemes(self) -> frozenset[str]:
        """Those of the inner transport."""
        return self._inner.schemes

    @property
    def dead(self) -> bool:
        """Whether it was killed."""
        return self._dead

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens a door that the kill closes."""

        async def remember(carrier: Carrier) -> None:
            await self._keep(carrier)
            await accept(carrier)

        listener = await self._inner.listen(remember)
        self._open.append(listener)
        return listener

    async def dial(self, endpoint: str) -> Carrier:
        """Dials; refused once this end is dead."""
        if self._dead:
            raise ConnectionRefusedError(f"{endpoint} cannot be dialled from a killed worker")
        carrier = await self._inner.dial(endpoint)
        await self._keep(carrier)
        return carrier

    async def kill(self) -> None:
        """Breaks all carriers and closes all doors; nothing is dialled or accepted any more."""
        self._dead = True
        opened, self._open = self._open, []
        for thing in reversed(opened):
            await thing.close()

    async def _keep(self, carrier: Carrier) -> None:
        self._open.append(carrier)
        if self._dead:  # killed while it was being made
            await carrier.close()
