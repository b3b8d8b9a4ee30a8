"""Which groups this worker has left, so that what others still say of them is dropped; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from telegrad.collectives.messages import GroupKey

__all__ = ["MOST_MEMBERSHIPS", "GoneGroups"]

# Groups of the same members in the same incarnations count as one; at 250 bytes each. What was said
# of a group that is none of these any more has long arrived, or would be kept and find no taker.
MOST_MEMBERSHIPS: Final = 4096


@final
class GoneGroups:
    """The groups that were left: for each digest of members the epochs up to which all are.

    Both counts go away from 0, those of `new_group` up and those of the world down, and a worker
    leaves all of its groups at once: whatever lies between 0 and one that it has left is gone too.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, tuple[int, int]] = {}  # in the order in which they were left

    def __len__(self) -> int:
        return len(self._epochs)

    def __contains__(self, key: GroupKey) -> bool:
        lowest, highest = self._epochs.get(key.members, (0, -1))
        return lowest <= key.epoch <= highest

    def add(self, keys: Iterable[GroupKey]) -> None:
        """Takes groups that are left now."""
        for key in keys:
            lowest, highest = self._epochs.pop(key.members, (0, 0))
            self._epochs[key.members] = min(lowest, key.epoch), max(highest, key.epoch)
            if len(self._epochs) > MOST_MEMBERSHIPS:
                del self._epochs[next(iter(self._epochs))]
