"""Reference counting of RRefs: the messages, and two pure state machines for owner and user.

A value lives at its **owner**. Every other worker that refers to it is a **user** and holds a
**fork**; the forks of an RRef form a tree, each with a **parent** that sent it. `OwnerTable` keeps
the forks of this worker's values; `UserTable` keeps this worker's forks of other workers' values.
Both take events and return effects.

    sender ──fork──▶ receiver        what is counted, and what is sent

    owner ──fork──▶ user             the owner counts the fork as it sends; confirmed on arrival
    user  ──fork──▶ owner            the user pins its own fork until ChildAccept comes back
    parent ─fork──▶ child            the parent pins its own fork;
                    child ──ForkRequest──▶ owner
                    child ◀──ForkConfirm── owner        the owner counts the fork and reports
                                                        a failed creation of the value
    parent ◀─ChildAccept── child                        the parent releases its pin
    creator ─creation──▶ owner       the owner counts the creator's fork when it arrives;
    creator ◀──reply─────── owner    pending until then. If the creation fails, the owner sends all
                                     other users one more ForkConfirm, and marks later forks failed

A fork at its user (`UserTable`). `let go` means: no handle, no call under way, no pinned child:

    arrived from a parent ─▶ PENDING ── ForkConfirm, reply ─▶ CONFIRMED ── let go ─▶ UserDelete ─▶ ∅
    created                     │
                                ├─ the creation failed ──▶ FAILED ── let go ──▶ UserDelete ─▶ ∅
                                ├─ gone at the owner ──▶ GONE ── let go ──▶ ∅
    arrived from the owner ─▶ CONFIRMED, or FAILED
                             CONFIRMED ── the creation failed ──▶ FAILED
           the creator's time was over ─▶ FAILED ── late reply ──▶ CONFIRMED
                                any ── the owner is lost ──▶ LOST ── let go ──▶ ∅

A value at its owner (`OwnerTable`): absent ─▶ expected (named before its creation arrived) ─▶
creating ─▶ settled ─▶ freed. It is freed when it has no handle, no fork and no running creation.

Guarantees, for any order of messages and for repeated messages:

- G1: the owner learns that each fork it counted ended: by a UserDelete, or by the loss of its user.
- G2: a parent's fork outlives the confirmation of its child; a user's fork outlives the arrival of
  what it sends to the owner. So a ForkRequest always finds the value, as long as nobody is lost.
- G3: a fork or a creation that was counted once is never counted again.
- G4: a lost user's forks at the owner, and a parent's pins for a lost child, are released when
  `expire` is called, one full bound after `lost`. Messages of the lost worker have arrived by then.
- G5: the forks of a lost owner are LOST for good, and nothing more is sent about them.
- G6: the forks of a message that is known not to have been delivered end (`user_delete`,
  `child_accept`). Those of one that arrived and will never be decoded are given back (`refused`).

If a call brings an RRef, its function starts only after the fork has left PENDING, and only if the
owner has counted it. The fork is then CONFIRMED, or FAILED: every use of a FAILED one raises the
error of the creation again.

Neither table is thread-safe; their user holds one lock around each event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, TypeAlias, final

from telegrad.rpc.rref.numbers import NumberSet, SeenNumbers
from telegrad.types import WorkerInfo

# -- identifiers of RRefs and forks -------------------------------------------------------------


class RRefId(NamedTuple):
    """Names one value at its owner; never used twice in a job.

    Attributes:
        owner: The incarnation of the worker that holds the value.
        creator: The incarnation of the worker that asked for it; the owner, for `RRef(value)`.
        number: The number of this RRef among those of the same owner and creator, from 0.
    """

    owner: int
    creator: int
    number: int


class ForkId(NamedTuple):
    """Names one user's reference to an RRef; never used twice in a job.

    Attributes:
        owner: The incarnation of the RRef's owner.
        parent: The incarnation of the worker that made the fork: it sent the RRef, or created it.
        child: The incarnation of the worker that holds the fork.
        number: The number of this fork among those with the same three incarnations, from 0. So the
            numbers that an owner or a child sees are consecutive, and `NumberSet` keeps one run.
    """

    owner: int
    parent: int
    child: int
    number: int


# Same result as `RRefId(*numbers)` in a third of the time; one reference makes seven such calls.
rref_id: Final[Callable[[Iterable[int]], RRefId]] = partial(tuple.__new__, RRefId)
fork_id: Final[Callable[[Iterable[int]], ForkId]] = partial(tuple.__new__, ForkId)


# -- messages ------------------------------------------------------------------------------------

# Nobody modifies a message. The classes are not frozen: frozen ones take three times as long to
# make.


@dataclass(slots=True)
class ForkRequest:
    """From child to owner: a request to count this fork."""

    rref: RRefId
    fork: ForkId


@dataclass(slots=True)
class ForkConfirm:
    """From owner to child: the fork is counted, or the value is gone and the fork never will be.

    The owner sends it once more if the creation of the value fails after that.
    """

    fork: ForkId
    known: bool
    failed: bool = False  # True if the creation of the value failed


@dataclass(slots=True)
class ChildAccept:
    """To the parent, from the child or from an owner that got its own RRef: release the pin."""

    fork: ForkId


@dataclass(slots=True)
class UserDelete:
    """From user to owner: this fork has ended."""

    rref: RRefId
    fork: ForkId


@dataclass(slots=True)
class CreationAbandon:
    """From creator to owner: the creation of this RRef was never sent and never will be."""

    rref: RRefId


ProtocolMessage: TypeAlias = ForkRequest | ForkConfirm | ChildAccept | UserDelete | CreationAbandon


# -- effects -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Send:
    """Send this message; if the peer is lost by now, drop it."""

    peer: WorkerInfo
    message: ProtocolMessage


@dataclass(slots=True)
class Freed:
    """Nobody refers to this value any longer; drop it."""

    rref: RRefId


@dataclass(slots=True)
class Orphaned:
    """The creation of an expected value will never arrive; fail everything that waits for it."""

    rref: RRefId


@dataclass(slots=True)
class Settled:
    """This fork is no longer PENDING."""

    fork: ForkId


Effect: TypeAlias = Send | Freed | Orphaned | Settled


# -- the owner's table ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Owned:
    handles: int = 0
    creating: bool = False
    failed: bool = False  # True if its creation failed
    creator: WorkerInfo | None = None  # None while it is expected
    asked_by: ForkId | None = None  # the creator's fork; the reply tells it how the creation ended
    forks: dict[ForkId, WorkerInfo] = field(default_factory=dict)


@final
class OwnerTable:
    """The values of one worker, and their forks at other workers.

    Args:
        most_unseen: The number of forks of values not created yet, and of forks that ended before
            they were counted, that are kept for one user.
    """

    def __init__(self, me: WorkerInfo, most_unseen: int = 100_000) -> None:
        self._me = me
        self._most_unseen = most_unseen
        self._owned: dict[RRefId, _Owned] = {}
        self._next_rref = 0
        self._next_fork: defaultdict[int, int] = defaultdict(int)  # by child
        # G3: creations by creator (and this worker), forks by child and parent. A lost creator
        # sends no more creations.
        self._created = SeenNumbers()
        self._counted = SeenNumbers()
        # By child: forks whose UserDelete came before they were counted, the oldest first.
        self._ended: dict[int, dict[ForkId, None]] = {}
        self._expected = Counter[int]()  # by child: counted forks of values not created yet
        self._lost = NumberSet()  # lost incarnations; most are consecutive, as a job counts them

    def __len__(self) -> int:
        """Returns the number of values, including expected ones."""
        return len(self._owned)

    def __contains__(self, rref: RRefId) -> bool:
        return rref in self._owned

    @property
    def forks(self) -> int:
        """The number of forks that are counted."""
        return sum(len(owned.forks) for owned in self._owned.values())

    def holders(self, rref: RRefId | None = None) -> set[WorkerInfo]:
        """Returns the other living workers that hold a fork of this value, or of any if None."""
        entries = self._owned.values() if rref is None else filter(None, [self._owned.get(rref)])
        return {
            user
            for entry in entries
            for user in entry.forks.values()
            if user != self._me and user.incarnation not in self._lost
        }

    def creator(self, rref: RRefId) -> WorkerInfo | None:
        """Returns the creator of a value; None if it is gone or its creation has not arrived."""
        owned = self._owned.get(rref)
        return None if owned is None else owned.creator

    def new(self, *, creating: bool = False) -> RRefId:
        """Enters a value made here, or one that a creation requested here will make; one handle."""
        rref = RRefId(self._me.incarnation, self._me.incarnation, self._next_rref)
        self._next_rref += 1
        self._created.take(rref.creator, rref.owner, rref.number)
        self._owned[rref] = _Owned(handles=1, creating=creating, creator=self._me)
        return rref

    def create(self, rref: RRefId, fork: ForkId, creator: WorkerInfo) -> bool:
        """Takes a creation request; returns True if it is new, and its function must run."""
        if not self._created.take(rref.creator, rref.owner, rref.number):  # G3
            return False
        owned = self._owned.get(rref)
        if owned is None:
            owned = self._owned[rref] = _Owned()
        # The forks that came before it are forks of a created value from now on.
        self._expected.subtract(known.child for known in owned.forks)
        # Holds the value until its function has returned, whoever lets go meanwhile.
        owned.creating = True
        owned.creator = creator
        owned.asked_by = fork
        self._count(owned, fork, creator)
        return True

    def settle(self, rref: RRefId, *, failed: bool = False) -> list[Effect]:
        """Records that the creation ended; if it failed, tells all users."""
        owned = self._owned.get(rref)
        if owned is None:
            return []
        owned.creating = False
        if not failed:
            return [] if owned.forks else self._free_if_unused(rref)
        owned.failed = True
        return self.tell(rref) + self._free_if_unused(rref)

    def failed(self, rref: RRefId) -> bool:
        """Returns True if the creation of a value failed."""
        owned = self._owned.get(rref)
        return owned is not None and owned.failed

    def tell(self, rref: RRefId, whom: WorkerInfo | None = None) -> list[Effect]:
        """Tells one user, or all of them if None, that the creation failed, if it did."""
        owned = self._owned.get(rref)
        if owned is None or not owned.failed:
            return []
        return [
            Send(user, ForkConfirm(fork, known=True, failed=True))
            for fork, user in owned.forks.items()
            if fork != owned.asked_by and whom in (None, user)
        ]

    def hold(self, rref: RRefId) -> bool:
        """Takes one more handle here, of an expected value too; returns False if it is gone."""
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
        """Takes an RRef that came home: one more handle here, and the sender's pin may go (G2).

        Returns:
            True and effects if the value is there or expected; else False, and no handle was taken.
        """
        # The handle comes before the pin goes: the sender's fork may be the last that keeps the
        # value (G2).
        held = self.hold(rref)
        return held, self.refused(rref, fork, parent)

    def refused(self, rref: RRefId, fork: ForkId, parent: WorkerInfo) -> list[Effect]:
        """Records that an RRef came home in a message that nobody will decode (G6)."""
        if parent == self._me:
            return self.user_delete(rref, fork)
        return [Send(parent, ChildAccept(fork))]

    def fork_request(self, rref: RRefId, fork: ForkId, child: WorkerInfo) -> list[Effect]:
        """Counts a child's fork and confirms it.

        A child that names more uncreated values than may be hears that they are gone.
        """
        full = rref not in self._owned and self._expected[child.incarnation] >= self._most_unseen
        if not full and not self._is_gone(rref):
            self._count(self._owned.setdefault(rref, _Owned()), fork, child)
        owned = self._owned.get(rref)
        # A fork whose UserDelete came first was not counted: its child hears that it is gone (G3).
        known = owned is not None and fork in owned.forks
        answer = ForkConfirm(fork, known, known and self.failed(rref))
        return [Send(child, answer), *self._free_if_unused(rref)]

    def user_delete(self, rref: RRefId, fork: ForkId) -> list[Effect]:
        """Ends a fork (G1), also one from `make_fork` that was not delivered (G6)."""
        owned = self._owned.get(rref)
        if owned is None or owned.forks.pop(fork, None) is None:
            if not self._counted.contains(fork.child, fork.parent, fork.number):
                ended = self._ended.setdefault(fork.child, {})
                ended[fork] = None  # so it never is counted: G3
                if len(ended) > self._most_unseen:
                    del ended[next(iter(ended))]
            return []
        if owned.creator is None:
            self._expected[fork.child] -= 1
        return self._free_if_unused(rref)

    def abandon(self, rref: RRefId) -> list[Effect]:
        """Records that a creation will never arrive."""
        return (
            self._orphan(rref) if self._created.take(rref.creator, rref.owner, rref.number) else []
        )

    def lost(self, peer: WorkerInfo) -> list[Effect]:
        """Records that a worker is lost: it creates no more; its forks stay for now (G4)."""
        self._lost.add(peer.incarnation)
        orphans = [
            rref
            for rref in self._owned
            if rref.creator == peer.incarnation
            and not self._created.contains(rref.creator, rref.owner, rref.number)
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
        # Nothing of the peer is under way any more (G4).
        self._counted.forget(peer.incarnation)
        self._ended.pop(peer.incarnation, None)
        del self._expected[peer.incarnation]
        return effects

    def _is_gone(self, rref: RRefId) -> bool:
        if rref in self._owned:
            return False
        # The creation of an unknown value may still come, unless it came once or its creator is
        # lost.
        return rref.creator in self._lost or self._created.contains(
            rref.creator, rref.owner, rref.number
        )

    def _count(self, owned: _Owned, fork: ForkId, child: WorkerInfo) -> None:
        if not self._counted.take(fork.child, fork.parent, fork.number):  # G3
            return
        if self._ended and (ended := self._ended.get(fork.child)) and fork in ended:
            del ended[fork]
            return
        owned.forks[fork] = child
        if owned.creator is None:
            self._expected[fork.child] += 1

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


# -- the user's table ----------------------------------------------------------------------------


class ForkState(Enum):
    """The state of a fork as its user knows it; the module docstring draws the transitions."""

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
    counted: bool = True  # the owner may have counted it, and must hear of its end
    made: bool = False  # the reply to its creation has said that the value is there
    children: dict[ForkId, WorkerInfo] = field(default_factory=dict)


@final
class UserTable:
    """One worker's forks of the values of other workers."""

    def __init__(self, me: WorkerInfo) -> None:
        self._me = me
        self._forks: dict[ForkId, _Fork] = {}
        self._pinned_by: dict[ForkId, ForkId] = {}  # a child's fork, to our fork that it pins
        self._next_rref: defaultdict[int, int] = defaultdict(int)  # by owner
        self._next_fork: defaultdict[tuple[int, int], int] = defaultdict(int)  # by (owner, child)
        self._arrived = SeenNumbers()  # G3: forks that arrived, by parent and owner
        self._lost = NumberSet()  # lost incarnations; most are consecutive, as a job counts them

    def __len__(self) -> int:
        """Returns the number of forks, including those that only wait to end."""
        return len(self._forks)

    def __contains__(self, fork: ForkId) -> bool:
        return fork in self._forks

    def state(self, fork: ForkId) -> ForkState | None:
        """Returns the state of a fork; None if it has ended."""
        entry = self._forks.get(fork)
        return None if entry is None else entry.state

    def made(self, fork: ForkId) -> bool:
        """Returns True if the creation of a fork's value, requested here, has succeeded."""
        entry = self._forks.get(fork)
        return entry is not None and entry.made

    def held(self) -> list[ForkId]:
        """Returns the forks that have a handle."""
        return [fork for fork, entry in self._forks.items() if entry.handle]

    def create(self, owner: WorkerInfo) -> tuple[RRefId, ForkId]:
        """Names a new RRef that `owner` will be asked to create, and this worker's fork of it."""
        there, here = owner.incarnation, self._me.incarnation
        number = self._next_rref[there]
        self._next_rref[there] = number + 1
        rref = rref_id((there, here, number))
        fork = self._new_fork(there, here)
        state = ForkState.LOST if there in self._lost else ForkState.PENDING
        self._forks[fork] = _Fork(rref, owner, None, state)
        return rref, fork

    def created(self, fork: ForkId) -> list[Effect]:
        """Records that the creation succeeded, perhaps after this worker stopped waiting for it."""
        entry = self._forks.get(fork)
        if entry is not None:
            entry.made = True
            if entry.state is ForkState.FAILED:
                entry.state = ForkState.CONFIRMED
        return self._settle(fork, ForkState.CONFIRMED)

    def creation_failed(self, fork: ForkId, *, delivered: bool) -> list[Effect]:
        """Records that the creation failed.

        Args:
            fork: The creator's fork.
            delivered: False only if the request is known not to have been delivered (G6). The owner
                may know the RRef from other workers; it is told that the creation will not come.
        """
        entry = self._forks.get(fork)
        # The reply and the deadline may both end a creation. The first of them decides; but a
        # success that comes late still counts (`created`).
        if entry is None or entry.state is not ForkState.PENDING:
            return []
        effects: list[Effect] = []
        if not delivered:
            # The owner never counts this fork: its end is told by CreationAbandon, and no
            # UserDelete may follow.
            entry.counted = False
            effects.append(Send(entry.owner, CreationAbandon(entry.rref)))
        return effects + self._settle(fork, ForkState.FAILED)

    def make_fork(self, fork: ForkId, child: WorkerInfo) -> ForkId:
        """Makes a fork that leaves for `child` now, and pins `fork` for it (G2).

        Raises:
            KeyError: The fork has ended, or is about to end.
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

        The word of the parent that the creation `failed` is believed only if it is the owner.

        Returns:
            True and effects if the fork is here. False if a repeated message names a fork that has
            already ended.
        """
        if not self._is_first(fork):
            known = self._forks.get(fork)
            if known is not None:
                known.handle = True
            return known is not None, []
        # The owner has counted forks that it sent itself; for others it must be asked to.
        state = ForkState.PENDING
        if parent == owner:
            state = ForkState.FAILED if failed else ForkState.CONFIRMED
        if owner.incarnation in self._lost:
            state = ForkState.LOST
        self._forks[fork] = _Fork(rref, owner, parent, state)
        if state is ForkState.PENDING:
            return True, [Send(owner, ForkRequest(rref, fork))]
        # G5: the owner may be alive for the parent, which would then keep its pin for ever.
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
        """Takes the owner's answer to a ForkRequest; then the parent may release its pin (G2).

        For a fork that is already counted it says that the creation of the value has failed since.
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
        """Releases the pin for a child that is confirmed, or was not delivered (G6)."""
        fork = self._pinned_by.pop(child, None)
        if fork is None:
            return []
        del self._forks[fork].children[child]
        return self._leave_if_let_go(fork)

    def use(self, fork: ForkId) -> ForkState | None:
        """Keeps a fork for a call that names it, until `unuse`; returns None if it has ended."""
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
        """Records that the handle is gone; the fork ends as soon as nothing else keeps it."""
        entry = self._forks.get(fork)
        if entry is None:
            return []
        entry.handle = False
        return self._leave_if_let_go(fork)

    def lost(self, peer: WorkerInfo) -> list[Effect]:
        """Records that a worker is lost, with its values (G5); pins for its forks stay for now."""
        self._lost.add(peer.incarnation)
        effects: list[Effect] = []
        for fork in [fork for fork, entry in self._forks.items() if entry.owner == peer]:
            entry = self._forks[fork]
            # The owner is lost, so that no child will be confirmed: the pins go now, not by
            # ChildAccept.
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
        self._arrived.forget(peer.incarnation)
        return [effect for child in pins for effect in self.child_accept(child)]

    def _new_fork(self, owner: int, child: int) -> ForkId:
        number = self._next_fork[owner, child]
        self._next_fork[owner, child] = number + 1
        return fork_id((owner, self._me.incarnation, child, number))

    def _is_first(self, fork: ForkId) -> bool:
        return self._arrived.take(fork.parent, fork.owner, fork.number)  # G3

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
        # A UserDelete of a fork that the owner does not count would be kept there as one that came
        # early.
        if entry.state is ForkState.LOST or not entry.counted:
            return []
        return [Send(entry.owner, UserDelete(entry.rref, fork))]
