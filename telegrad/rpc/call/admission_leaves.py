"""Which leaves to send a call lapse: those of which nothing comes while others wait. Pure.

    look   1     2     3    ...   LOOKS + 1
           seen  same  same       same: it lapses, and others come in its place
                 a piece has come: counted anew

A worker that is alive announces an admitted call at once and sends its pieces in turn with whatever
else it sends, so at ten looks in a row the same says that it is stopped, cut off or means harm. If
the call comes after all it is taken in, and counts from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from telegrad.rpc.call.admission import Grant

__all__ = ["LOOKS", "Leaves"]

# Of `Limits.stalled_after` each: 10 s, the time in which a silent worker is lost. On a loaded host
# honest ones pause for a second or two, and a leave that lapses too soon exceeds the budget.
LOOKS: Final = 10


@final
class Leaves:
    """Counts looks at the calls that were admitted and have not come."""

    def __init__(self) -> None:
        self._seen: dict[Grant, tuple[int | None, int]] = {}

    def look(self, coming: Mapping[Grant, int | None]) -> list[Grant]:
        """Takes a look; returns the leaves that lapse now.

        Args:
            coming: The calls on their way, and how many pieces each still awaits; None where it is
                not announced yet.
        """
        seen, self._seen = self._seen, {}
        lapsed = []
        for grant, left in coming.items():
            before, looks = seen.get(grant, (left, 0))
            looks = looks + 1 if before == left else 1
            if looks > LOOKS:
                lapsed.append(grant)
            else:
                self._seen[grant] = left, looks
        return lapsed
