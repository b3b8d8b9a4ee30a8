"""The owner's side of RRef counting: a pure state machine; `rref_protocol` draws it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import final

from telegrad.rpc.rref_ids import ForkId, NumberSet, RRefId
from telegrad.rpc.rref_protocol import ChildAccept, Effect, ForkConfirm, Freed, Orphaned, Send
from telegrad.types import WorkerInfo

__all__ = ["OwnerTable"]


@dataclass(slots=True)
class _Owned:
    handles: int = 0
    creating: bool = False
    failed: bool = False  # its creation
    creator: WorkerInfo | None = None  # None while it is expected
    asked_by: ForkId | None = None  # the creator's, who hears by the reply how it ended
    forks: dict[ForkId, WorkerInfo] = field(default_factory=dict)


@final
class OwnerTable:
    """The values of one worker, and who refers to them.

    Args:
        me: The worker.
    """

    def __init__(self, me: WorkerInfo) -> None:
        self._me = me
        self._owned: dict[RRefId, _Owned] = {}
        self._next_rref = 0
        self._next_fork: defaultdict[int, int] = defaultdict(int)  # by child
        # G3: creations by creator, forks by (parent, child). A creator that is lost sends none.
        self._created: defaultdict[int, NumberSet] = defaultdict(NumberSet)
        self._counted: defaultdict[tuple[int, int], NumberSet] = defaultdict(NumberSet)
        self._lost = NumberSet()  # incarnations: a job counts them, so most lie side by side

    def __len__(self) -> int:
        """Returns how many values there are, those that are expected included."""
        return len(self._owned)

    def __contains__(self, rref: RRefId) -> bool:
        return rref in self._owned

    @property
    def forks(self) -> int:
        """How many forks are counted."""
        return sum(len(owned.forks) for owned in self._owned.values())

    def holders(self, rref: RRefId | None = None) -> set[WorkerInfo]:
        """Returns the living others that hold a fork of a value, or of any."""
        entries = self._owned.values() if rref is None else filter(None, [self._owned.get(rref)])
        return {
            user
            for entry in entries
            for user in entry.forks.values()
            if user != self._me and user.incarnation not in self._lost
        }

    def creator(self, rref: RRefId) -> WorkerInfo | None:
        """Returns who had a value created; None where it is gone, or its creation not arrived."""
        owned = self._owned.get(rref)
        return None if owned is None else owned.creator

    def new(self, *, creating: bool = False) -> RRefId:
        """Enters a value made here, or that a creation asked for here will make; one handle."""
        rref = RRefId(self._me.incarnation, self._me.incarnation, self._next_rref)
        self._next_rref += 1
        self._created[rref.creator].add(rref.number)
        self._owned[rref] = _Owned(handles=1, creating=creating, creator=self._me)
        return rref

    def create(self, rref: RRefId, fork: ForkId, creator: WorkerInfo) -> bool:
        """Takes a creation request; returns whether it is a new one, whose function is to run."""
        if not self._created[rref.creator].take(rref.number):  # G3
            return False
        owned = self._owned.get(rref)
        if owned is None:
            owned = self._owned[rref] = _Owned()
        owned.creating = True
        owned.creator = creator
        owned.asked_by = fork
        self._count(owned, fork, creator)
        return True

    def settle(self, rref: RRefId, *, failed: bool = False) -> list[Effect]:
        """Hears that the creation ended, with a value or an exception, and tells of the latter."""
        owned = self._owned.get(rref)
        if owned is None:
            return []
        owned.creating = False
        if not failed:
            return [] if owned.forks else self._free_if_unused(rref)
        owned.failed = True
        return self.tell(rref) + self._free_if_unused(rref)

    def failed(self, rref: RRefId) -> bool:
        """Whether the creation of a value failed."""
        owned = self._owned.get(rref)
        return owned is not None and owned.failed

    def tell(self, rref: RRefId, whom: WorkerInfo | None = None) -> list[Effect]:
        """Tells one user, or all, that the creation failed, if it did."""
        owned = self._owned.get(rref)
        if owned is None or not owned.failed:
            return []
        return [
            Send(user, ForkConfirm(fork, known=True, failed=True))
            for fork, user in owned.forks.items()
            if fork != owned.asked_by and whom in (None, user)
        ]

    def hold(self, rref: RRefId) -> bool:
        """Takes one more handle here; False when the value is gone. May be expected, not yet made."""
        if self._is_gone(rref):
            return False
        self._owned.setdefault(rref, _Owned()).handles += 1
        return True

    def drop(self, rref: RRefId) -> list[Effect]:
        """Gives one handle back."""
        owned = self._owned.get(rref)
        if owned is None:
            return []
        owned.handles = max(0, owned.handles - 1)
        return self._free_if_unused(rref)

    def make_fork(self, rref: RRefId, child: WorkerInfo) -> ForkId:
        """Counts a fork that leaves for `child` now, which may be this worker itself.

        Raises:
            KeyError: The value is gone.
        """
        owned = self._owned[rref]
        number = self._next_fork[child.incarnation]
        self._next_fork[child.incarnation] = number + 1
        fork = ForkId(self._me.incarnation, self._me.incarnation, child.incarnation, number)
        self._count(owned, fork, child)
        return fork

    def arrived(self, rref: RRefId, fork: ForkId, parent: WorkerInfo) -> tuple[bool, list[Effect]]:
        """Takes an RRef that came home: one more handle, and the sender's pin may go (G2).

        Returns:
            Whether the value is there or expected (only then a handle was taken), and effects.
        """
        held = self.hold(rref)
        return held, self.refused(rref, fork, parent)

    def refused(self, rref: RRefId, fork: ForkId, parent: WorkerInfo) -> list[Effect]:
        """Hears that an RRef came home in a message that nobody will decode (G6)."""
        if parent == self._me:
            return self.user_delete(rref, fork)
        return [Send(parent, ChildAccept(fork))]

    def undelivered(self, rref: RRefId, fork: ForkId) -> list[Effect]:
        """Takes back a fork from `make_fork` that was not handed over (G6)."""
        return self.user_delete(rref, fork)

    def fork_request(self, rref: RRefId, fork: ForkId, child: WorkerInfo) -> list[Effect]:
        """Counts a child's fork, and confirms it."""
        if not self._is_gone(rref):
            self._count(self._owned.setdefault(rref, _Owned()), fork, child)
        owned = self._owned.get(rref)
        known = owned is not None and fork in owned.forks
        answer = ForkConfirm(fork, known, known and self.failed(rref))
        return [Send(child, answer), *self._free_if_unused(rref)]

    def user_delete(self, rref: RRefId, fork: ForkId) -> list[Effect]:
        """Ends a fork (G1)."""
        owned = self._owned.get(rref)
        if owned is None or owned.forks.pop(fork, None) is None:
            self._counted[fork.parent, fork.child].add(fork.number)  # it never will be: G3
            return []
        return self._free_if_unused(rref)

    def abandon(self, rref: RRefId) -> list[Effect]:
        """Hears that a creation will never arrive."""
        return self._orphan(rref) if self._created[rref.creator].take(rref.number) else []

    def lost(self, peer: WorkerInfo) -> list[Effect]:
        """Hears that a worker is lost: its creations come no more; its forks stay for now (G4)."""
        self._lost.add(peer.incarnation)
        created = self._created.get(peer.incarnation, NumberSet())
        orphans = [
            rref
            for rref in self._owned
            if rref.creator == peer.incarnation and rref.number not in created
        ]
        return [effect for rref in orphans for effect in self._orphan(rref)]

    def expire(self, peer: WorkerInfo) -> list[Effect]:
        """Releases the forks of a lost worker, one full bound after `lost` (G4)."""
        effects: list[Effect] = []
        for rref, owned in list(self._owned.items()):
            held = [fork for fork, user in owned.forks.items() if user == peer]
            for fork in held:
                del owned.forks[fork]
            if held:
                effects += self._free_if_unused(rref)
        for parent, child in list(self._counted):
            if child == peer.incarnation:
                del self._counted[parent, child]
        return effects

    def _is_gone(self, rref: RRefId) -> bool:
        if rref in self._owned:
            return False
        return rref.creator in self._lost or rref.number in self._created[rref.creator]

    def _count(self, owned: _Owned, fork: ForkId, child: WorkerInfo) -> None:
        if self._counted[fork.parent, fork.child].take(fork.number):  # G3
            owned.forks[fork] = child

    def _orphan(self, rref: RRefId) -> list[Effect]:
        owned = self._owned.get(rref)
        if owned is None:
            return []
        owned.failed = True
        return [*self.tell(rref), Orphaned(rref), *self._free_if_unused(rref)]

    def _free_if_unused(self, rref: RRefId) -> list[Effect]:
        owned = self._owned.get(rref)
        if owned is None or owned.handles or owned.creating or owned.forks:
            return []
        del self._owned[rref]
        return [Freed(rref)]
