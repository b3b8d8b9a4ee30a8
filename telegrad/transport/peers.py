"""The connections of one exchange, by peer: made, found, and forgotten long after they ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, final

from telegrad.transport.connection import Connection
from telegrad.transport.forgotten import Forgotten
from telegrad.transport.statistics import Moved
from telegrad.transport.terms import Terms
from telegrad.types import WorkerInfo

__all__ = ["ENDED_PEERS", "Peers"]

# Kept whole, at 4 KB each; of those before them the name, by which to refuse them.
ENDED_PEERS: Final = 256


@final
class Peers:
    """Whom a worker has met; from any thread.

    Args:
        terms: What its connections share.
        reach: Dials for a connection; called on the loop.

    Attributes:
        connections: By name and incarnation, ended ones included. May be looked up without a lock.
        forgotten: Who is no more among them; once lost is lost for good.
    """

    def __init__(self, terms: Terms, reach: Callable[[Connection], None]) -> None:
        self.connections: dict[tuple[str, int], Connection] = {}
        self.forgotten = Forgotten()
        self._terms = terms
        self._reach = reach
        self._lock = threading.Lock()  # guards what is here, but for looking up
        self._moved = Moved()  # by connections that are forgotten
        self._forget_at = 2 * ENDED_PEERS  # connections, ended ones included
        self._closed = False

    def find(self, peer: WorkerInfo, make: bool) -> Connection | None:
        """Returns the connection to a peer, if there is one.

        Args:
            peer: The incarnation.
            make: Whether it is made if there is none: unless the peer is forgotten, or all is closed.
        """
        key = peer.name, peer.incarnation
        known = self.connections.get(key)
        if known is not None or not make:
            return known
        with self._lock:
            connection = self.connections.get(key)
            if connection is None and not self._closed and peer not in self.forgotten:
                connection = self.connections[key] = Connection(peer, self._terms)
                connection.on_reach(self._reach)
                self._forget_ended()
            return connection

    def all(self) -> list[Connection]:
        """Returns all connections, ended ones included."""
        with self._lock:
            return list(self.connections.values())

    def moved(self) -> Moved:
        """Returns what all of them have moved, with those that are forgotten."""
        with self._lock:
            connections, moved = list(self.connections.values()), self._moved
        return sum([each.moved() for each in connections], moved)

    def is_full(self) -> bool:
        """Tells whether there are as many that have not ended as the limits allow."""
        most = self._terms.limits.connections
        with self._lock:
            if len(self.connections) < most:
                return False
            return sum(not known.ended.is_set() for known in self.connections.values()) >= most

    def is_forgotten(self, peer: WorkerInfo) -> bool:
        """Tells whether a peer ended so long ago that nothing else is kept of it."""
        with self._lock:
            return peer in self.forgotten

    def close(self) -> list[Connection]:
        """Makes no more; returns those that there are."""
        with self._lock:
            self._closed = True
            return list(self.connections.values())

    def _forget_ended(self) -> None:
        """Forgets whom it met first of those that ended, when they are many. Holds the lock."""
        if len(self.connections) < self._forget_at:
            return
        ended = [key for key, known in self.connections.items() if known.ended.is_set()]
        for key in ended[:-ENDED_PEERS]:
            self._moved += self.connections.pop(key).moved()
            self.forgotten.add(*key)
        self._forget_at = len(self.connections) + ENDED_PEERS
