"""The user's side of RRef counting: a pure state machine; `rref_protocol` draws it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import final

from telegrad.rpc.rref_ids import ForkId, NumberSet, RRefId, fork_id, rref_id
from telegrad.rpc.rref_protocol import (
    ChildAccept,
    CreationAbandon,
    Effect,
    ForkRequest,
    Send,
    Settled,
    UserDelete,
)
from telegrad.types import WorkerInfo

__all__ = ["ForkState", "UserTable"]


class ForkState(Enum):
    """What a user knows of its fork; drawn in `rref_protocol`."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"
    GONE = "gone"
    LOST = "lost"


@dataclass(slots=True)
class _Fork:
    rref: RRefId
    owner: WorkerInfo
    parent: WorkerInfo | None  # None: created here
    state: ForkState
    handle: bool = True
    uses: int = 0
    counted: bool = True  # whether the owner may know of it and must hear of its end
    children: dict[ForkId, WorkerInfo] = field(default_factory=dict)


@final
class UserTable:
    """One worker's forks of the values of others.

    Args:
        me: The worker.
    """

    def __init__(self, me: WorkerInfo) -> None:
        self._me = me
        self._forks: dict[ForkId, _Fork] = {}
        self._pinned_by: dict[ForkId, ForkId] = {}  # a child, to the fork of ours that it pins
        self._next_rref: defaultdict[int, int] = defaultdict(int)  # by owner
        self._next_fork: defaultdict[tuple[int, int], int] = defaultdict(int)  # by (owner, child)
        # G3: forks that arrived, by (owner, parent).
        self._arrived: defaultdict[tuple[int, int], NumberSet] = defaultdict(NumberSet)
        self._lost = NumberSet()  # incarnations: a job counts them, so most lie side by side

    def __len__(self) -> int:
        """Returns how many forks there are, those that only wait to leave included."""
        return len(self._forks)

    def __contains__(self, fork: ForkId) -> bool:
        return fork in self._forks

    def state(self, fork: ForkId) -> ForkState | None:
        """What is known of a fork; None when it has left."""
        entry = self._forks.get(fork)
        return None if entry is None else entry.state

    def held(self) -> list[ForkId]:
        """The forks that have a handle."""
        return [fork for fork, entry in self._forks.items() if entry.handle]

    def create(self, owner: WorkerInfo) -> tuple[RRefId, ForkId]:
        """Names a new RRef that `owner` is about to be asked to create, and this worker's fork."""
        there, here = owner.incarnation, self._me.incarnation
        number = self._next_rref[there]
        self._next_rref[there] = number + 1
        rref = rref_id((there, here, number))
        fork = self._new_fork(there, here)
        state = ForkState.LOST if there in self._lost else ForkState.PENDING
        self._forks[fork] = _Fork(rref, owner, None, state)
        return rref, fork

    def created(self, fork: ForkId) -> list[Effect]:
        """Hears that the creation succeeded."""
        return self._settle(fork, ForkState.CONFIRMED)

    def creation_failed(self, fork: ForkId, *, delivered: bool) -> list[Effect]:
        """Hears that the creation failed.

        Args:
            fork: The creator's fork.
            delivered: False only if the request is known not to have been handed over (G6). The
                owner, which may have heard of the RRef from others, is told that it will not come.
        """
        entry = self._forks.get(fork)
        if entry is None or entry.state is not ForkState.PENDING:
            return []
        effects: list[Effect] = []
        if not delivered:
            entry.counted = False
            effects.append(Send(entry.owner, CreationAbandon(entry.rref)))
        return effects + self._settle(fork, ForkState.FAILED)

    def make_fork(self, fork: ForkId, child: WorkerInfo) -> ForkId:
        """Makes a fork that leaves for `child` now, and pins `fork` for it (G2).

        Raises:
            KeyError: The fork has left, or is about to.
        """
        entry = self._forks[fork]
        if not entry.handle and not entry.uses:
            raise KeyError(fork)
        made = self._new_fork(entry.owner.incarnation, child.incarnation)
        if entry.state is not ForkState.LOST:
            entry.children[made] = child
            self._pinned_by[made] = fork
        return made

    def arrived(
        self,
        rref: RRefId,
        fork: ForkId,
        owner: WorkerInfo,
        parent: WorkerInfo,
        *,
        failed: bool = False,
    ) -> tuple[bool, list[Effect]]:
        """Takes a fork that came in a message, with one handle.

        Args:
            rref: Which value.
            fork: The fork.
            owner: Who has the value.
            parent: Who sent it.
            failed: Whether the creation failed, as its parent says; only the owner's word counts.

        Returns:
            Whether the fork is here (it is not if a repeated message names one that has left),
            and effects.
        """
        if not self._is_first(fork):
            known = self._forks.get(fork)
            if known is not None:
                known.handle = True
            return known is not None, []
        # The owner counted what it sent itself; whatever else it must be asked to count.
        state = ForkState.PENDING
        if parent == owner:
            state = ForkState.FAILED if failed else ForkState.CONFIRMED
        if owner.incarnation in self._lost:
            state = ForkState.LOST
        self._forks[fork] = _Fork(rref, owner, parent, state)
        if state is ForkState.PENDING:
            return True, [Send(owner, ForkRequest(rref, fork))]
        # G5: the parent, for whom the owner may live, would keep its pin for ever.
        return True, [Send(parent, ChildAccept(fork))] if parent != owner else []

    def refused(
        self, rref: RRefId, fork: ForkId, owner: WorkerInfo, parent: WorkerInfo
    ) -> list[Effect]:
        """Gives back a fork that came in a message that nobody will decode (G6)."""
        if not self._is_first(fork):
            return []
        if parent == owner:
            return [Send(owner, UserDelete(rref, fork))]
        return [Send(parent, ChildAccept(fork))]

    def fork_confirm(self, fork: ForkId, *, known: bool, failed: bool = False) -> list[Effect]:
        """Hears the owner's answer to a ForkRequest; then the parent may let go (G2).

        Or, of a fork that is counted, that the creation of its value has failed since.
        """
        entry = self._forks.get(fork)
        if entry is None or entry.parent is None:
            return []
        if entry.state is ForkState.PENDING:
            entry.counted = known
            counted = ForkState.FAILED if failed else ForkState.CONFIRMED
            return self._settle(fork, counted if known else ForkState.GONE)
        if entry.state is ForkState.CONFIRMED and known and failed:
            entry.state = ForkState.FAILED
        return []

    def child_accept(self, child: ForkId) -> list[Effect]:
        """Lets go of the pin for a child that its owner has confirmed."""
        fork = self._pinned_by.pop(child, None)
        if fork is None:
            return []
        del self._forks[fork].children[child]
        return self._leave_if_let_go(fork)

    def undelivered(self, child: ForkId) -> list[Effect]:
        """Takes back a fork from `make_fork` that was not handed over (G6)."""
        return self.child_accept(child)

    def use(self, fork: ForkId) -> ForkState | None:
        """Keeps a fork for a call that names it, until `unuse`; None when it has left."""
        entry = self._forks.get(fork)
        if entry is None or not (entry.handle or entry.uses):
            return None
        entry.uses += 1
        return entry.state

    def unuse(self, fork: ForkId) -> list[Effect]:
        """Ends one `use`."""
        entry = self._forks.get(fork)
        if entry is None:
            return []
        entry.uses = max(0, entry.uses - 1)
        return [] if entry.handle else self._leave_if_let_go(fork)

    def release(self, fork: ForkId) -> list[Effect]:
        """Hears that the handle is gone; the fork leaves as soon as it is let go."""
        entry = self._forks.get(fork)
        if entry is None:
            return []
        entry.handle = False
        return self._leave_if_let_go(fork)

    def lost(self, peer: WorkerInfo) -> list[Effect]:
        """Hears that a worker is lost: its own values with it (G5); pins for it stay for now."""
        self._lost.add(peer.incarnation)
        effects: list[Effect] = []
        for fork in [fork for fork, entry in self._forks.items() if entry.owner == peer]:
            entry = self._forks[fork]
            for child in entry.children:
                del self._pinned_by[child]
            entry.children.clear()
            effects += self._settle(fork, ForkState.LOST)
        return effects

    def expire(self, peer: WorkerInfo) -> list[Effect]:
        """Releases the pins for a lost child, one full bound after `lost` (G4)."""
        pins = [
            child
            for child, fork in self._pinned_by.items()
            if self._forks[fork].children[child] == peer
        ]
        for owner, parent in list(self._arrived):
            if parent == peer.incarnation:
                del self._arrived[owner, parent]
        return [effect for child in pins for effect in self.child_accept(child)]

    def _new_fork(self, owner: int, child: int) -> ForkId:
        number = self._next_fork[owner, child]
        self._next_fork[owner, child] = number + 1
        return fork_id((owner, self._me.incarnation, child, number))

    def _is_first(self, fork: ForkId) -> bool:
        return self._arrived[fork.owner, fork.parent].take(fork.number)  # G3

    def _settle(self, fork: ForkId, state: ForkState) -> list[Effect]:
        entry = self._forks.get(fork)
        if entry is None or entry.state in (state, ForkState.LOST):
            return []
        was_pending = entry.state is ForkState.PENDING
        if not was_pending and state is not ForkState.LOST:
            return []
        entry.state = state
        effects: list[Effect] = []
        if was_pending:
            if entry.parent is not None:
                effects.append(Send(entry.parent, ChildAccept(fork)))  # G2, G5
            effects.append(Settled(fork))
        return effects if entry.handle else effects + self._leave_if_let_go(fork)

    def _leave_if_let_go(self, fork: ForkId) -> list[Effect]:
        entry = self._forks[fork]
        if entry.handle or entry.uses or entry.children or entry.state is ForkState.PENDING:
            return []
        del self._forks[fork]
        if entry.state is ForkState.LOST or not entry.counted:
            return []
        return [Send(entry.owner, UserDelete(entry.rref, fork))]
