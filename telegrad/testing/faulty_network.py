"""The network of a job of tests: it judges messages by a plan, and is cut and healed when told.

What is cut holds messages back, as a network that loses packets does: nobody is told, and when it
is whole again before the silence was too long, everything arrives. Carriers that begin while it is
cut break in their handshake, and are dialled again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Protocol, TypeAlias, final
from weakref import WeakSet

from telegrad.rpc import current_agent
from telegrad.testing.fault_plan import Fault, FaultPlan, Judge, Passing, Verdict

__all__ = [
    "FaultStatistics",
    "FaultyEnd",
    "FaultyNetwork",
    "Injected",
    "Names",
    "faulty_network",
]

Names: TypeAlias = str | Sequence[str]  # of workers, as patterns: "worker0", ["worker0", "ps*"]


@final
@dataclass(frozen=True, slots=True)
class Injected:
    """One fault that was made.

    Attributes:
        passing: The message that it struck.
        verdict: What happened to it.
    """

    passing: Passing
    verdict: Verdict


@final
@dataclass(frozen=True, slots=True)
class FaultStatistics:
    """What a faulty network has done so far.

    Attributes:
        messages: That were judged; handshakes included.
        carriers: That were opened, counted at each faulty end.
        dropped: Messages that never arrived.
        delayed: Messages that arrived later.
        duplicated: Messages that arrived twice.
        reordered: Messages that arrived behind the next one.
        killed: Carriers that broke, by the plan or by `FaultyNetwork.kill`.
        held: Messages that waited for a network that was cut.
        unreachable: Dials and handshakes that failed because it was cut.
    """

    messages: int = 0
    carriers: int = 0
    dropped: int = 0
    delayed: int = 0
    duplicated: int = 0
    reordered: int = 0
    killed: int = 0
    held: int = 0
    unreachable: int = 0

    @property
    def faults(self) -> int:
        """How many messages were struck, and carriers broken."""
        return self.dropped + self.delayed + self.duplicated + self.reordered + self.killed


COUNTED = {
    Fault.DROP: "dropped",
    Fault.DELAY: "delayed",
    Fault.DUPLICATE: "duplicated",
    Fault.REORDER: "reordered",
    Fault.KILL: "killed",
    Fault.KILL_AFTER: "killed",
}


class FaultyEnd(Protocol):
    """One end of a carrier, as its network sees it."""

    @property
    def here(self) -> str:
        """Name of the worker at this end; empty while not known."""

    @property
    def there(self) -> str:
        """Name of the worker at the other end; empty while not known."""

    def look_again(self) -> None:
        """Has what waits see whether the network is whole; from any thread."""

    def kill_soon(self) -> None:
        """Breaks the carrier; from any thread."""


@final
@dataclass(frozen=True, slots=True)
class _Cut:
    """What separates these workers from those; both ways, or only on the way from these."""

    these: tuple[str, ...]
    those: tuple[str, ...]
    one_way: bool = False

    def separates(self, sender: str, receiver: str) -> bool:
        """Returns whether it lies on the way from one worker to another."""
        if _among(sender, self.these) and _among(receiver, self.those):
            return True
        return not self.one_way and _among(sender, self.those) and _among(receiver, self.these)


@final
class FaultyNetwork:
    """The network of one job of tests, by a plan; shared by the faulty transports of its workers.

    Workers may live in several processes, each with a network of the same plan: chance does there
    what it would do here; what rules and `FaultPlan.most` count, each process counts for itself.

    All methods may be called from any thread.

    Args:
        plan: What goes wrong without being asked; by default nothing does.
    """

    def __init__(self, plan: FaultPlan | None = None) -> None:
        self.plan = FaultPlan() if plan is None else plan
        self._faults_lock = threading.Lock()  # guards all below
        self._judge = Judge(self.plan)
        self._counts: Counter[str] = Counter()
        self._injected: list[Injected] = []
        self._cuts: list[_Cut] = []
        self._numbers: Counter[str] = Counter()
        self._called: dict[str, str] = {}  # what a worker's line says: what the worker is called
        self._open: WeakSet[FaultyEnd] = WeakSet()

    def partition(self, these: Names = "*", those: Names = "*", *, one_way: bool = False) -> None:
        """Cuts the network between workers, until it is healed; cuts add up.

        Each of `these` is cut off from each of `those`: `partition("worker0")` leaves worker0
        alone, `partition()` leaves everybody alone. The coordinator is called `coordinator`; who
        is cut off from it for longer than `lost_after` is given up by the job.

        Args:
            these: Names, or patterns of names.
            those: Names, or patterns of names.
            one_way: Whether only what `these` send to `those` is held back, and not the reverse.
        """
        with self._faults_lock:
            self._cuts.append(_Cut(_names(these), _names(those), one_way))

    def heal(self) -> None:
        """Takes all cuts away; what was held back arrives."""
        with self._faults_lock:
            self._cuts.clear()
            opened = list(self._open)
        for carrier in opened:
            carrier.look_again()

    def kill(self, these: Names = "*", those: Names = "*") -> None:
        """Breaks the carriers between workers soon; they may dial again."""
        cut = _Cut(_names(these), _names(those))
        with self._faults_lock:
            opened = list(self._open)
        for carrier in opened:
            if cut.separates(carrier.here, carrier.there):
                carrier.kill_soon()

    def statistics(self) -> FaultStatistics:
        """Returns the counts so far."""
        with self._faults_lock:
            return FaultStatistics(**self._counts)

    def injected(self) -> list[Injected]:
        """Returns all faults that the plan has made so far, in their order."""
        with self._faults_lock:
            return list(self._injected)

    def __repr__(self) -> str:
        """Shows the plan, with the seed to say when a test fails, and the counts."""
        counts = self.statistics()
        said = [f"{each.name}: {getattr(counts, each.name)}" for each in fields(counts)]
        return f"<FaultyNetwork of {self.plan!r} ({', '.join(said)})>"

    # For the carriers.

    def opened(self, carrier: FaultyEnd) -> None:
        """Hears of a new end of a carrier."""
        with self._faults_lock:
            self._open.add(carrier)
            self._counts["carriers"] += 1

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Returns whether nothing gets from one worker to another; an empty name is anybody's."""
        with self._faults_lock:
            return any(cut.separates(sender, receiver) for cut in self._cuts)

    def count(self, name: str) -> None:
        """Counts one more in a field of the statistics."""
        with self._faults_lock:
            self._counts[name] += 1

    def number(self, ends: str, purpose: str, here: str) -> str:
        """Returns the name of a carrier, as seen from one of its ends."""
        direction = f"{ends} {purpose}, from {here}"
        with self._faults_lock:
            self._numbers[direction] += 1
            return f"{ends} {purpose} {self._numbers[direction]}, from {here}"

    def called(self, said: str, name: str = "") -> str:
        """Returns what a worker is called that says a name; learns it where it is given."""
        with self._faults_lock:
            if name and said:
                self._called[said] = name
            return self._called.get(said, said)

    def judged(self, passing: Passing) -> Verdict | None:
        """Returns what happens to the next message; None for nothing."""
        with self._faults_lock:
            self._counts["messages"] += 1
            verdict = self._judge.judge(passing)
            if verdict is not None:
                self._counts[COUNTED[verdict.fault]] += 1
                self._injected.append(Injected(passing, verdict))
            return verdict


def faulty_network() -> FaultyNetwork:
    """Returns the faulty network of the ambient agent, in a function that a cluster runs.

    Raises:
        NotInitializedError: The cluster's network is sound.
    """
    return current_agent().attached(FaultyNetwork)


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _among(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
