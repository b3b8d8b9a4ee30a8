"""The connections of one exchange, by peer: made, found, and forgotten long after they ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, final

from telegrad.critical import critical
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.terms import ExchangeStatistics, Terms
from telegrad.types import WorkerInfo

# At 150 bytes each. A worker that had a session here and is not among so many is refused all the
# same: it says that it goes on with its session, and there is none.
MOST_NAMES: Final = 4096


@final
class Forgotten:
    """The incarnations that are lost for good, told apart by name.

    One number is kept for each name: incarnations of a name only grow, so all up to the latest that
    was forgotten are gone as well. When there are too many names, those that were added first are
    dropped.
    """

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}  # in the order in which they were last added

    def __len__(self) -> int:
        return len(self._latest)

    def __contains__(self, peer: WorkerInfo) -> bool:
        return peer.incarnation <= self._latest.get(peer.name, -1)

    def add(self, name: str, incarnation: int) -> None:
        """Records one more incarnation."""
        known = self._latest.pop(name, incarnation)
        self._latest[name] = max(known, incarnation)
        if len(self._latest) > MOST_NAMES:
            del self._latest[next(iter(self._latest))]


# Connections are kept whole, at 4 KB each. Of those that ended before these only the name is kept,
# so that it can be refused.
ENDED_PEERS: Final = 256


@final
class Peers:
    """The connections to all workers that this one has met; from any thread.

    Args:
        dial: Dials for a connection; called on the loop.

    Attributes:
        known: The connections by name and incarnation, ended ones included. May be looked up
            without a lock.
        forgotten: The incarnations that are no longer among them; once lost is lost for good.
    """

    def __init__(self, terms: Terms, dial: Callable[[Carriers], None]) -> None:
        self.known: dict[tuple[str, int], Carriers] = {}
        self.forgotten = Forgotten()
        self._terms = terms
        self._dial = dial
        self._lock = threading.Lock()  # guards all here; lookups need no lock
        self._moved = ExchangeStatistics()  # by connections that are forgotten
        self._forget_at = 2 * ENDED_PEERS  # connections, ended ones included
        self._closed = False

    def find(self, peer: WorkerInfo, make: bool) -> Carriers | None:
        """Returns the connection to a peer; None if there is none.

        With `make`, a missing one is made, unless the peer is forgotten, or all is closed.
        """
        key = peer.name, peer.incarnation
        known = self.known.get(key)
        if known is not None or not make:
            return known
        with critical.section, self._lock:
            # Looked up again: two connections to one peer would both number its envelopes from 1.
            known = self.known.get(key)
            if known is None and not self._closed and peer not in self.forgotten:
                known = self.known[key] = Carriers(peer, self._terms, self._dial)
                self._forget_ended()
            return known

    def all(self) -> list[Carriers]:
        """Returns all connections, ended ones included."""
        with critical.section, self._lock:
            return list(self.known.values())

    def moved(self) -> ExchangeStatistics:
        """Returns the totals of all connections, with those that are forgotten."""
        with critical.section, self._lock:
            known, moved = list(self.known.values()), self._moved
        return sum([each.connection.moved() for each in known], moved)

    def is_full(self) -> bool:
        """Returns True if as many connections have not ended as the limits allow."""
        most = self._terms.limits.connections
        with critical.section, self._lock:
            if len(self.known) < most:
                return False
            return sum(not known.ended.is_set() for known in self.known.values()) >= most

    def is_forgotten(self, peer: WorkerInfo) -> bool:
        """Returns True if a peer ended so long ago that only its name is kept."""
        with critical.section, self._lock:
            return peer in self.forgotten

    def close(self) -> list[Carriers]:
        """Makes no more connections; returns those that there are."""
        with critical.section, self._lock:
            self._closed = True
            return list(self.known.values())

    def _forget_ended(self) -> None:
        """Forgets the ended connections that were made first, when many. Holds the lock."""
        if len(self.known) < self._forget_at:
            return
        ended = [key for key, known in self.known.items() if known.ended.is_set()]
        for key in ended[:-ENDED_PEERS]:
            self._moved += self.known.pop(key).connection.moved()
            self.forgotten.add(*key)
        self._forget_at = len(self.known) + ENDED_PEERS
