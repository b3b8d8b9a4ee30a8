"""Four workers' RRef tables joined by a network that reorders, repeats, drops and loses.

The world breaks no promise that sessions and agents give: a message is handed over, or its peer
is lost, or its sender knows that it was not handed over; `expire` comes once everything that the
lost worker sent has arrived (that is what one full bound after the loss means).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from telegrad.rpc.rref.protocol import (
    ChildAccept,
    CreationAbandon,
    Effect,
    ForkConfirm,
    ForkId,
    ForkRequest,
    ForkState,
    Freed,
    Orphaned,
    OwnerTable,
    ProtocolMessage,
    RRefId,
    Send,
    UserDelete,
    UserTable,
)
from telegrad.types import WorkerInfo

N = 4


@dataclass(frozen=True)
class Create:
    rref: RRefId
    fork: ForkId


@dataclass(frozen=True)
class Created:
    fork: ForkId
    good: bool


@dataclass(frozen=True)
class Carry:
    """A call or reply that carries an RRef."""

    rref: RRefId
    fork: ForkId
    failed: bool = False


Content: TypeAlias = Create | Created | Carry | ProtocolMessage


@dataclass(eq=False)
class Flight:
    src: int
    dst: int
    content: Content
    arrived: bool = False  # a copy of it was handed over


class World:
    """Events come in by its methods; `check` states what must hold after each."""

    def __init__(self) -> None:
        self.infos = [WorkerInfo(f"w{r}", r, 100 + r) for r in range(N)]
        self.owners = [OwnerTable(info) for info in self.infos]
        self.users = [UserTable(info) for info in self.infos]
        self.owner_handles: list[Counter[RRefId]] = [Counter() for _ in range(N)]
        self.user_handles: list[dict[ForkId, RRefId]] = [{} for _ in range(N)]
        self.flights: list[Flight] = []
        self.running: list[tuple[int, RRefId, ForkId]] = []
        self.started: set[RRefId] = set()  # creations that arrived, and values made by their owner
        self.sources: dict[ForkId, ForkId] = {}  # the fork of which a user made another
        self.unsure: set[RRefId] = set()  # abandoned or timed out: may rightly be unknown
        self.crashed: set[int] = set()
        self.lost: set[tuple[int, int]] = set()
        self.expired: set[tuple[int, int]] = set()

    # What users do.

    def living(self) -> list[int]:
        return [r for r in range(N) if r not in self.crashed]

    def make(self, r: int) -> None:
        rref = self.owners[r].new()
        self.started.add(rref)
        self.owner_handles[r][rref] += 1

    def remote(self, r: int, to: int) -> None:
        rref, fork = self.users[r].create(self.infos[to])
        self.user_handles[r][fork] = rref
        if (r, to) in self.lost:
            assert self.users[r].state(fork) is ForkState.LOST
        else:
            self.flights.append(Flight(r, to, Create(rref, fork)))

    def handles(self) -> list[tuple[int, RRefId | ForkId]]:
        found: list[tuple[int, RRefId | ForkId]] = []
        for r in self.living():
            found += [(r, rref) for rref in sorted(self.owner_handles[r].elements())]
            found += [(r, fork) for fork in sorted(self.user_handles[r])]
        return found

    def send(self, r: int, handle: RRefId | ForkId, to: int) -> None:
        if isinstance(handle, RRefId):
            made = self.owners[r].make_fork(handle, self.infos[to])
            content = Carry(handle, made, self.owners[r].failed(handle))
        else:
            if self.users[r].state(handle) is ForkState.LOST:
                return  # refused in words before anything is sent
            made = self.users[r].make_fork(handle, self.infos[to])
            self.sources[made] = handle
            content = Carry(self.user_handles[r][handle], made)
        flight = Flight(r, to, content)
        if (r, to) in self.lost:
            self._give_back(flight)
        else:
            self.flights.append(flight)

    def release(self, r: int, handle: RRefId | ForkId) -> None:
        if isinstance(handle, RRefId):
            self.owner_handles[r][handle] -= 1
            self._apply(r, self.owners[r].drop(handle))
        else:
            del self.user_handles[r][handle]
            self._apply(r, self.users[r].release(handle))

    def finish(self, index: int, *, good: bool) -> None:
        r, rref, fork = self.running.pop(index)
        if r in self.crashed:
            return
        self._apply(r, self.owners[r].settle(rref, failed=not good))
        self._post(r, fork.parent - 100, Created(fork, good))

    def time_out(self, r: int, fork: ForkId) -> None:
        """The creator waits no longer for the reply to its creation."""
        if fork.parent == fork.child and self.users[r].state(fork) is ForkState.PENDING:
            self.unsure.add(self.user_handles[r][fork])
            self._apply(r, self.users[r].creation_failed(fork, delivered=True))

    # What the network does.

    def deliver(self, index: int, *, keep: bool = False, refuse: bool = False) -> None:
        flight = self.flights[index]
        if not keep:
            del self.flights[index]
        flight.arrived = True
        if flight.dst in self.crashed or (flight.dst, flight.src) in self.lost:
            return
        if refuse and isinstance(flight.content, Carry):
            self._refuse(flight.src, flight.dst, flight.content)
        else:
            self._receive(flight.src, flight.dst, flight.content)

    def undeliver(self, index: int) -> None:
        """A call or reply is known not to have been handed over."""
        flight = self.flights[index]
        if flight.arrived or not isinstance(flight.content, Create | Carry):
            return
        del self.flights[index]
        if flight.src not in self.crashed:
            self._give_back(flight)

    def lose(self, r: int, peer: int) -> None:
        if r == peer or r in self.crashed or (r, peer) in self.lost:
            return
        self.lost.add((r, peer))
        self.flights = [f for f in self.flights if (f.src, f.dst) != (peer, r)]
        self._apply(r, self.owners[r].lost(self.infos[peer]))
        self._apply(r, self.users[r].lost(self.infos[peer]))
        # A call to a lost worker fails; whether it was handed over is not known.
        for fork, rref in list(self.user_handles[r].items()):
            if rref.owner == self.infos[peer].incarnation:
                assert self.users[r].state(fork) is ForkState.LOST

    def crash(self, r: int) -> None:
        self.crashed.add(r)
        self.flights = [f for f in self.flights if f.dst != r]
        self.running = [running for running in self.running if running[0] != r]
        self.owner_handles[r].clear()
        self.user_handles[r].clear()

    def may_expire(self, r: int, peer: int) -> bool:
        """Whether one full bound may have passed since `r` lost `peer`."""
        if (r, peer) not in self.lost or (r, peer) in self.expired or r in self.crashed:
            return False
        if peer not in self.crashed and (peer, r) not in self.lost:
            return False
        lost = self.infos[peer].incarnation
        for flight in self.flights:
            content = flight.content
            if flight.src == peer and isinstance(content, Carry | ForkRequest):
                return False
            if isinstance(content, ForkRequest) and content.fork.parent == lost:
                return False
        return True

    def expire(self, r: int, peer: int) -> None:
        if self.may_expire(r, peer):
            self.expired.add((r, peer))
            self._apply(r, self.owners[r].expire(self.infos[peer]))
            self._apply(r, self.users[r].expire(self.infos[peer]))

    # What must hold.

    def check(self) -> None:
        """Nothing is freed at its owner while a living user holds it."""
        for r in self.living():
            for rref, count in self.owner_handles[r].items():
                assert not count or rref in self.owners[r], f"w{r} holds {rref}, which was freed"
            for fork, rref in self.user_handles[r].items():
                o = rref.owner - 100
                if self._apart(r, o) or rref not in self.started or rref in self.unsure:
                    continue
                state = self.users[r].state(fork)
                if state is ForkState.PENDING and self._lost_on_its_way(fork):
                    continue  # it will be GONE: G2 holds as long as nobody is lost
                if state not in (ForkState.GONE, ForkState.LOST):
                    assert rref in self.owners[o], f"w{r} holds {fork}, {rref} was freed"

    def drain(self) -> None:
        """Lets everything go and everything arrive; then nothing may be left anywhere."""
        for r, handle in self.handles():
            self.release(r, handle)
        for r in self.living():
            for peer in range(N):
                if peer in self.crashed or (peer, r) in self.lost:
                    self.lose(r, peer)
        for _ in range(10_000):
            if self.flights:
                self.deliver(0)
                self.check()
                for r, handle in self.handles():
                    self.release(r, handle)
            elif self.running:
                self.finish(0, good=True)
            elif pairs := [pair for pair in self.lost if self.may_expire(*pair)]:
                self.expire(*pairs[0])
            else:
                break
        for r in self.living():
            assert len(self.owners[r]) == 0, f"w{r} still owns {len(self.owners[r])} values"
            assert len(self.users[r]) == 0, f"w{r} still uses {self.users[r].held()}"
            assert self.owners[r].forks == 0

    # How events are wired.

    def _apart(self, r: int, peer: int) -> bool:
        return peer in self.crashed or (r, peer) in self.lost or (peer, r) in self.lost

    def _lost_on_its_way(self, fork: ForkId) -> bool:
        """Whether a user that handed it on, before it was counted, has lost the owner."""
        while fork in self.sources:
            if (fork.parent - 100, fork.owner - 100) in self.lost:
                return True
            fork = self.sources[fork]
        return False

    def _post(self, src: int, dst: int, content: Content) -> None:
        if (src, dst) not in self.lost and dst not in self.crashed:
            self.flights.append(Flight(src, dst, content))

    def _apply(self, r: int, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._post(r, effect.peer.rank, effect.message)
            elif isinstance(effect, Freed):
                assert not self.owner_handles[r][effect.rref]
            elif isinstance(effect, Orphaned):
                assert effect.rref not in self.started

    def _refuse(self, src: int, dst: int, carry: Carry) -> None:
        parent, owner = self.infos[src], self.infos[carry.rref.owner - 100]
        if owner == self.infos[dst]:
            self._apply(dst, self.owners[dst].refused(carry.rref, carry.fork, parent))
        else:
            self._apply(dst, self.users[dst].refused(carry.rref, carry.fork, owner, parent))

    def _give_back(self, flight: Flight) -> None:
        r, content = flight.src, flight.content
        if isinstance(content, Create):
            self.unsure.add(content.rref)
            self._apply(r, self.users[r].creation_failed(content.fork, delivered=False))
        elif isinstance(content, Carry) and content.rref.owner == self.infos[r].incarnation:
            self._apply(r, self.owners[r].user_delete(content.rref, content.fork))
        elif isinstance(content, Carry):
            self._apply(r, self.users[r].child_accept(content.fork))

    def _receive(self, src: int, dst: int, content: Content) -> None:
        owner, user, peer = self.owners[dst], self.users[dst], self.infos[src]
        effects: list[Effect] = []
        match content:
            case Create(rref, fork):
                if owner.create(rref, fork, peer):
                    self.started.add(rref)
                    self.running.append((dst, rref, fork))
            case Created(fork, True):
                effects = user.created(fork)
            case Created(fork, False):
                effects = user.creation_failed(fork, delivered=True)
            case Carry():
                effects = self._carry(peer, dst, content)
            case ForkRequest(rref, fork):
                effects = owner.fork_request(rref, fork, peer)
            case ForkConfirm(fork, known, failed):
                effects = user.fork_confirm(fork, known=known, failed=failed)
                if user.state(fork) is ForkState.GONE and fork in self.user_handles[dst]:
                    assert self.lost or self.user_handles[dst][fork] in self.unsure  # G2
            case ChildAccept(fork):
                effects = user.child_accept(fork)
            case UserDelete(rref, fork):
                effects = owner.user_delete(rref, fork)
            case CreationAbandon(rref):
                effects = owner.abandon(rref)
        self._apply(dst, effects)

    def _carry(self, peer: WorkerInfo, dst: int, carry: Carry) -> list[Effect]:
        rref, fork = carry.rref, carry.fork
        owner = self.infos[rref.owner - 100]
        if owner == self.infos[dst]:
            held, effects = self.owners[dst].arrived(rref, fork, peer)
            self.owner_handles[dst][rref] += held
            # A repeated message may come home after the value was freed; a first one may not.
            return effects
        here, effects = self.users[dst].arrived(rref, fork, owner, peer, failed=carry.failed)
        if here:
            self.user_handles[dst][fork] = rref
        return effects
