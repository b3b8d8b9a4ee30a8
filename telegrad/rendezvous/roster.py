"""What one worker knows of the others: the worker's side of membership, pure.

The welcome, the arrivals and the losses may reach a worker in any order; the roster ends in the
same state and reports each arrival and each loss at most once, and never an arrival of an
incarnation that is known to be lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from telegrad.rendezvous.membership import Member
from telegrad.rendezvous.newest import keep_newest
from telegrad.types import WorkerInfo

__all__ = ["Roster"]


@final
@dataclass(slots=True)
class Roster:
    """The living members as this worker has heard of them."""

    _living: dict[WorkerInfo, Member] = field(default_factory=dict)
    _lost: dict[WorkerInfo, None] = field(default_factory=dict)

    @property
    def members(self) -> tuple[Member, ...]:
        """The living members, by rank."""
        return tuple(sorted(self._living.values(), key=lambda member: member.info.rank))

    def joined(self, member: Member) -> bool:
        """Takes an arrival; returns whether it is news."""
        if member.info in self._living or member.info in self._lost:
            return False
        self._living[member.info] = member
        return True

    def lost(self, info: WorkerInfo) -> bool:
        """Takes a loss; returns whether it is news."""
        if info in self._lost:
            return False
        self._lost[info] = None
        keep_newest(self._lost)
        self._living.pop(info, None)
        return True
