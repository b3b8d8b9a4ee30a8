"""Four agents of this process whose references are shared, dropped, lost, and whose names return.

The model knows who holds what. Two things must hold: a value lives as long as a living worker
holds an RRef to it, and its owner lives; and once nobody does, it is gone.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from telegrad import rpc
from telegrad.errors import DuplicateNameError, OwnerLostError, TelegradError
from telegrad.rpc import Future, RRef, seams
from telegrad.rpc.rref.table import RRefRegistry
from telegrad.testing import FaultPlan
from telegrad.testing.leaks import wait_until_gone
from telegrad.types import WorkerInfo
from tests.rpc.membership_world import World

N = 4
SECONDS = 20.0
GONE_SECONDS = 10.0  # many times what a loss takes

Life: TypeAlias = tuple[int, int]  # a rank, and which worker of that rank


class Thing:
    """A value of the tests; whether it lives is seen from outside."""

    alive: ClassVar[weakref.WeakValueDictionary[int, Thing]] = weakref.WeakValueDictionary()
    made: ClassVar[set[int]] = set()

    def __init__(self, number: int) -> None:
        self.number = number
        Thing.alive[number] = self
        Thing.made.add(number)  # last: from now on `check` asks whether it lives


class Keeper:
    """A value that holds a reference, as part of it."""

    def __init__(self, rref: RRef[Any]) -> None:
        self.rref = rref


@dataclass(frozen=True)
class Parcel:
    first: RRef[Any]
    others: dict[str, list[RRef[Any]]]


# What arrived, by its label; the workers live in one process.
bag: dict[int, RRef[Any]] = {}


def keep(label: int, rref: RRef[Any]) -> None:
    bag[label] = rref


def keep_parcel(label: int, parcel: Parcel) -> None:
    assert parcel.others["again"] == [parcel.first]
    bag[label] = parcel.first


def look(label: int) -> RRef[Any]:
    return bag[label]


def number_of(rref: RRef[Thing]) -> int:
    return rref.to_here().number


def copy_of(number: int) -> Thing:
    """Returns what a Thing becomes elsewhere: its original alone counts."""
    copy = Thing.__new__(Thing)
    copy.number = number
    return copy


rpc.register_type(Thing, encode=lambda thing: thing.number, decode=copy_of)


@dataclass
class Handle:
    """An RRef that somebody holds."""

    label: int
    holder: Life
    owner: Life
    number: int


@dataclass
class Sharing:
    """A call that puts an RRef into the bag, or returns one from it."""

    sender: Life
    made: Handle
    future: Future[Any]
    returns: bool = False


@dataclass
class LivingWorld:
    """Events come in by its methods; `check` states what must hold after each."""

    faults: FaultPlan | None = None
    lost_after: float = 10.0
    handles: list[Handle] = field(default_factory=list)
    keepers: list[Handle] = field(default_factory=list)  # of values that hold an RRef in turn
    sharings: list[Sharing] = field(default_factory=list)
    unread: list[Future[Any]] = field(default_factory=list)
    dead: list[WorkerInfo] = field(default_factory=list)  # of whom nothing has expired yet
    agents: dict[int, seams.AgentCore] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    labels: int = 0

    def __post_init__(self) -> None:
        Thing.made.clear()
        bag.clear()
        self.world = World(
            "inproc", N, faults=self.faults, timeout=SECONDS, lost_after=self.lost_after
        )
        self.lives = dict.fromkeys(range(N), 0)
        self.agents = dict(enumerate(self.world.join_all()))

    # What happens.

    def life(self, r: int) -> Life:
        return r, self.lives[r]

    def lives_now(self, life: Life) -> bool:
        return life[0] in self.agents and self.life(life[0]) == life

    def on(self, r: int, func: Callable[..., Any], *args: Any) -> Any:
        with seams.use_agent(self.agents[r]):
            return func(*args)

    def make(self, r: int) -> None:
        handle = self._handle(r, self.life(r))
        bag[handle.label] = self.on(r, lambda: RRef(Thing(handle.number)))
        self.handles.append(handle)

    def remote(self, r: int, to: int) -> None:
        handle = self._handle(r, self.life(to))
        name = f"w{to}"
        if to in self.agents:
            bag[handle.label] = self.on(r, rpc.remote, name, Thing, (handle.number,))
            self.handles.append(handle)

    def share(self, handle: Handle, to: int, *, parcel: bool, drop: bool) -> None:
        """Sends an RRef to a worker, which keeps it; perhaps lets go before anyone has seen it."""
        rref, sender = bag[handle.label], handle.holder
        made = self._handle(to, handle.owner, handle.number)
        func, value = (keep_parcel, Parcel(rref, {"again": [rref]})) if parcel else (keep, rref)
        try:
            future = self.on(sender[0], rpc.rpc_async, f"w{to}", func, (made.label, value))
        except OwnerLostError:
            assert not self.lives_now(handle.owner)
            return
        self.sharings.append(Sharing(sender, made, future))
        del rref, value
        if drop:
            self.drop(handle, release=False)

    def ask(self, r: int, handle: Handle, *, read: bool) -> None:
        """Has a worker return an RRef that it holds; perhaps nobody reads the reply."""
        holder = handle.holder[0]
        future = self.on(r, rpc.rpc_async, f"w{holder}", look, (handle.label,))
        if read:
            made = self._handle(r, handle.owner, handle.number)
            self.sharings.append(Sharing(self.life(r), made, future, returns=True))
        else:
            self.unread.append(future)

    def nest(self, handle: Handle, to: int) -> None:
        """Has a worker make a value that holds the RRef; whoever holds that keeps it too."""
        rref = bag[handle.label]
        try:
            made = self.on(handle.holder[0], rpc.remote, f"w{to}", Keeper, (rref,))
        except OwnerLostError:
            return
        kept = Handle(self._label(), handle.holder, handle.owner, handle.number)
        bag[kept.label] = made
        self.keepers.append(kept)

    def drop(self, handle: Handle, *, release: bool) -> None:
        self.handles.remove(handle)
        rref = bag.pop(handle.label)
        if release:
            rref.release()

    def use(self, r: int, handle: Handle) -> None:
        """Fetches a value, from its holder or through a call to another worker."""
        rref, holder = bag[handle.label], handle.holder[0]
        try:
            if r == holder or r not in self.agents:
                found = self.on(holder, number_of, rref)
            else:
                found = self.on(holder, rpc.rpc_sync, f"w{r}", number_of, (rref,))
        except OwnerLostError:
            assert not self.lives_now(handle.owner), f"{handle} lost a living owner"
        else:
            assert found == handle.number
            assert self.lives_now(handle.owner), f"{handle} was fetched from the dead"

    def settle(self) -> None:
        """Waits for all that was shared."""
        unread, self.unread = self.unread, []
        self._wait_for("reply", lambda: all(future.done() for future in unread))
        sharings, self.sharings = self.sharings, []
        for sharing in sharings:
            made = sharing.made
            try:
                value = sharing.future.wait(SECONDS)
            except (TelegradError, KeyError):  # a worker, or the asked-for RRef, is gone
                if sharing.returns:
                    continue
            else:
                if sharing.returns:
                    bag[made.label] = value
            if made.label in bag and self.lives_now(made.holder):
                self.handles.append(made)
            else:
                bag.pop(made.label, None)

    def kill(self, r: int) -> None:
        """Ends a worker without a goodbye, with all that it holds."""
        agent = self.agents.pop(r)
        self.world.kill(agent)
        agent.shutdown(graceful=False)
        for handle in [each for each in self.handles if each.holder[0] == r]:
            self.drop(handle, release=False)
        self._let_go_of_keepers(lambda each: each.holder[0] == r)
        self.dead.append(agent.info)
        self._wait_for(
            "loss", lambda: all(each.members.lost(agent.info) for each in self.agents.values())
        )

    def rejoin(self, r: int) -> None:
        """Starts a worker under the name of one that was killed."""
        self.lives[r] += 1
        joined: list[seams.AgentCore] = []

        def join() -> bool:
            try:
                joined.append(self.world.join(r))
            except DuplicateNameError:
                return False  # the coordinator has not missed its predecessor yet
            return True

        self._wait_for("name", join)
        self.agents[r] = joined[0]
        info, agents = joined[0].info, self.agents.values()
        self._wait_for("member", lambda: all(info in each.members.living() for each in agents))

    def expire(self) -> None:
        """Has a full bound pass since the losses: whatever was on its way has arrived."""
        self.settle()
        self._wait_for("confirmation", lambda: not self._pending())
        dead, self.dead = self.dead, []
        for agent in self.agents.values():
            for info in dead:
                agent.attachments[RRefRegistry].expire(info)

    # What must hold.

    def check(self) -> None:
        """Nothing is freed at its owner while a living worker holds it."""
        for handle in self.handles:
            number = handle.number
            if self.lives_now(handle.owner) and number in Thing.made:
                assert number in Thing.alive, f"{handle} is held, and the value was freed"

    def forget(self, number: int) -> None:
        """Lets go of a value everywhere; then it must be gone."""
        self.expire()
        for handle in [each for each in self.handles if each.number == number]:
            self.drop(handle, release=number % 2 == 0)
        self._let_go_of_keepers(lambda each: each.number == number)
        self._wait_gone(lambda: [number] if number in Thing.alive else [])

    def end(self) -> None:
        """Lets go of everything; nothing may be left anywhere. Then shuts down."""
        try:
            self.expire()
            self.check()
            self.handles.clear()
            bag.clear()
            self._wait_gone(lambda: sorted(Thing.alive))
            registries = [agent.attachments[RRefRegistry] for agent in self.agents.values()]
            self._wait_gone(
                lambda: [
                    f"{each.me.name}: {each.counts()} owned, used"
                    for each in registries
                    if any(each.counts())
                ]
            )
        finally:
            self.close()

    def close(self) -> None:
        self.handles.clear()
        bag.clear()
        self.world.close()

    def _let_go_of_keepers(self, which: Callable[[Handle], bool]) -> None:
        for kept in [each for each in self.keepers if which(each)]:
            self.keepers.remove(kept)
            del bag[kept.label]

    # How it is made.

    def _pending(self) -> list[Handle]:
        held = [each for each in self.handles if self.lives_now(each.owner)]
        return [each for each in held if not bag[each.label].confirmed_by_owner()]

    def _handle(self, holder: int, owner: Life, number: int | None = None) -> Handle:
        label = self._label()
        return Handle(label, self.life(holder), owner, label if number is None else number)

    def _label(self) -> int:
        self.labels += 1
        return self.labels

    @staticmethod
    def _wait_for(what: str, there: Callable[[], bool]) -> None:
        wait_until_gone(f"wait for a {what}", lambda: [] if there() else [what], SECONDS)

    @staticmethod
    def _wait_gone(left: Callable[[], list[Any]]) -> None:
        def still() -> list[Any]:
            found = left()
            if found:
                gc.collect()  # a thread that just ends may still hold a frame
            return found

        wait_until_gone("values", still, GONE_SECONDS)
