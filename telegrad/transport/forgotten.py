"""Who has ended so long ago that nothing else is kept of it; pure."""

from __future__ import annotations

from typing import Final, final

from telegrad.types import WorkerInfo

__all__ = ["MOST_NAMES", "Forgotten"]

# At 150 bytes each. Whoever had a session here and is not among so many is refused all the same: it
# says that it goes on with it, and there is none.
MOST_NAMES: Final = 4096


@final
class Forgotten:
    """Incarnations that are lost for good, told apart by name.

    One number for each name: incarnations of a name only grow, so all up to the latest that was
    forgotten are gone as well. Of names that nobody has borne for long, the first are dropped.
    """

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}  # in the order in which they were last added

    def __len__(self) -> int:
        return len(self._latest)

    def __contains__(self, peer: WorkerInfo) -> bool:
        return peer.incarnation <= self._latest.get(peer.name, -1)

    def add(self, name: str, incarnation: int) -> None:
        """Takes one more."""
        known = self._latest.pop(name, incarnation)
        self._latest[name] = max(known, incarnation)
        if len(self._latest) > MOST_NAMES:
            del self._latest[next(iter(self._latest))]
