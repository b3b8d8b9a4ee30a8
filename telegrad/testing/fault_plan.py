"""Plans for the faults of a test network, drawn from a seed or set by rules. Pure.

    plan = FaultPlan(seed=7, drop=0.01, kill=0.01, rules=[FaultRule(Fault.KILL, "rpc.call")])

    message n of carrier c ──▶ Judge ──▶ None, or a Verdict: drop it, delay it by 3 ms, ...

A fault by chance depends on the seed, the carrier's name and the message's number on that carrier,
and on nothing else: one seed gives the same faults for the same messages. Of all rules and chances
at most one fault strikes a message.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import final

HANDSHAKE = "handshake."  # the prefix of the kinds of handshake messages


@final
class Fault(enum.Enum):
    """A fault that may strike a message.

    Attributes:
        DROP: It never arrives, and its sender is not told.
        DELAY: It arrives later, and so does everything that follows it on its carrier.
        DUPLICATE: It arrives twice.
        REORDER: It arrives behind the next one; never, if there is no next one.
        KILL: Its carrier breaks at both ends; the message is lost.
        KILL_AFTER: It arrives, then its carrier breaks; the sender cannot tell this from KILL.

    Example:
        >>> from telegrad.testing import FaultRule
        >>> FaultRule(Fault.DELAY, "rpc.call", seconds=0.5).fault is Fault.DELAY
        True
    """

    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    KILL = "kill"
    KILL_AFTER = "kill after"


@final
@dataclass(frozen=True, slots=True)
class FaultRule:
    """A fault for certain messages, selected by their content and by count.

    Attributes:
        fault: The fault.
        kind: A pattern for the content of messages: the kind of an envelope (`rpc.call`,
            `autograd.*`), `heartbeat`, `receipt` (a write with nothing else in it), `goodbye`,
            `bulk` (a chunk of a big buffer), or `handshake.hello` and so on. `*` is everything but
            handshakes.
        at: The number of the first of these messages that is struck, from 1.
        times: The number of messages in a row that are struck; None for all that follow.
        sender: A pattern for the name of the sending worker.
        receiver: A pattern for the name of the receiving worker.
        each_carrier: True if each direction of each carrier counts for itself; False if all count
            together.
        seconds: The duration of a DELAY.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster, Fault, FaultPlan
        >>> second_call = FaultRule(Fault.DUPLICATE, "rpc.call", at=2)
        >>> with Cluster(2, faults=FaultPlan(rules=[second_call])) as cluster:
        ...     cluster.call(0, rpc.rpc_sync, "worker1", math.sqrt, (4.0,))
        2.0
    """

    fault: Fault
    kind: str = "*"
    at: int = 1
    times: int | None = 1
    sender: str = "*"
    receiver: str = "*"
    each_carrier: bool = False
    seconds: float = 0.01

    def __post_init__(self) -> None:
        if self.at < 1 or (self.times is not None and self.times < 1):
            raise ValueError(f"at and times count from 1 (got at={self.at}, times={self.times})")
        _check_seconds("seconds", self.seconds)

    def matches(self, passing: Passing) -> bool:
        """Returns True if a message is one of those that this rule counts."""
        if passing.handshake and not self.kind.startswith(HANDSHAKE):
            return False
        return (
            fnmatchcase(passing.sender, self.sender)
            and fnmatchcase(passing.receiver, self.receiver)
            and any(fnmatchcase(kind, self.kind) for kind in passing.kinds)
        )

    def strikes(self, count: int) -> bool:
        """Returns True if this rule strikes the message with this count."""
        return count >= self.at and (self.times is None or count < self.at + self.times)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The faults of a network; the default has none.

    Attributes:
        seed: The seed of all chances; the same one gives the same faults for the same messages.
        drop: The chance, from 0 to 1, that a message is dropped.
        delay: The chance that a message is delayed.
        duplicate: The chance that a message comes twice.
        reorder: The chance that a message comes behind the next one.
        kill: The chance that the carrier breaks at a message; half of these messages still arrive.
        longest_delay: The longest delay in seconds; the duration is drawn, too.
        handshakes: True if chance strikes handshakes, too. One that loses a message is given up
            after 5 s, so tests with it are slow.
        most: The number of faults by chance after which the network stays sound; None for no end.
        rules: Faults that do not depend on chance; they have precedence.

    Raises:
        ValueError: A chance is not from 0 to 1, or their sum is above 1.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2, faults=FaultPlan(seed=7, duplicate=0.05)) as cluster:
        ...     cluster.call(0, rpc.rpc_sync, "worker1", math.sqrt, (4.0,))
        2.0
    """

    seed: int = 0
    drop: float = 0.0
    delay: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    kill: float = 0.0
    longest_delay: float = 0.01
    handshakes: bool = False
    most: int | None = None
    rules: Sequence[FaultRule] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        for name, chance in self.chances().items():
            if not 0.0 <= chance <= 1.0:
                raise ValueError(f"{name} is a chance between 0 and 1 (got {chance})")
        if (total := sum(self.chances().values())) > 1.0:
            raise ValueError(f"the chances of all faults together are at most 1 (got {total:g})")
        _check_seconds("longest_delay", self.longest_delay)

    def __repr__(self) -> str:
        """Shows the seed, and all values that differ from the default."""
        said = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name == "seed" or getattr(self, each.name) != each.default
        ]
        return f"FaultPlan({', '.join(said)})"

    def chances(self) -> dict[str, float]:
        """Returns the chance of each fault."""
        return {
            "drop": self.drop,
            "delay": self.delay,
            "duplicate": self.duplicate,
            "reorder": self.reorder,
            "kill": self.kill,
        }


@final
@dataclass(frozen=True, slots=True)
class Passing:
    """The facts about one message that a plan looks at.

    Attributes:
        sender: The name of the sending worker; empty while it is not known.
        receiver: The name of the receiving worker; empty while it is not known.
        carrier: The name of the carrier and direction: `worker0>worker1 control 2, from worker1` is
            the second carrier that worker0 dialled.
        number: The number of the message in that direction, handshake included, from 1.
        kinds: The contents of the message, as `FaultRule.kind` names them.
    """

    sender: str
    receiver: str
    carrier: str
    number: int
    kinds: tuple[str, ...]

    @property
    def handshake(self) -> bool:
        """True if the message belongs to the handshake of its carrier."""
        return is_handshake(self.kinds)


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The fault for one message.

    Attributes:
        fault: The fault.
        seconds: The duration of a delay.
    """

    fault: Fault
    seconds: float = 0.0


@final
class Judge:
    """Decides the fault of each message by a plan; counts for the rules; not thread-safe.

    >>> judge = Judge(FaultPlan(rules=[FaultRule(Fault.DROP, "rpc.call", at=2)]))
    >>> calls = [Passing("a", "b", "a>b control 1, from a", n, ("rpc.call",)) for n in (3, 4, 5)]
    >>> [judge.judge(call) for call in calls]
    [None, Verdict(fault=<Fault.DROP: 'drop'>, seconds=0.0), None]
    """

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._counts: Counter[tuple[int, str]] = Counter()
        self._by_chance = 0

    def judge(self, passing: Passing) -> Verdict | None:
        """Returns the fault for the next message; None for no fault."""
        return self._told(passing) or self._drawn(passing)

    def _told(self, passing: Passing) -> Verdict | None:
        """Counts the message for every rule; the first rule that strikes it decides."""
        verdict = None
        for place, rule in enumerate(self._plan.rules):
            if not rule.matches(passing):
                continue
            where = (place, passing.carrier if rule.each_carrier else "")
            self._counts[where] += 1
            if verdict is None and rule.strikes(self._counts[where]):
                verdict = Verdict(rule.fault, rule.seconds if rule.fault is Fault.DELAY else 0.0)
        return verdict

    def _drawn(self, passing: Passing) -> Verdict | None:
        plan = self._plan
        if passing.handshake and not plan.handshakes:
            return None
        if plan.most is not None and self._by_chance >= plan.most:
            return None
        verdict = draw(plan, passing.carrier, passing.number)
        self._by_chance += verdict is not None
        return verdict


def is_handshake(kinds: Sequence[str]) -> bool:
    """Returns True if a message of these kinds belongs to the handshake of its carrier."""
    return any(kind.startswith(HANDSHAKE) for kind in kinds)


def draw(plan: FaultPlan, carrier: str, number: int) -> Verdict | None:
    """Draws the fault by chance for a message; depends on nothing but the arguments.

    Args:
        plan: The plan, with seed and chances.
        carrier: The name of the carrier and direction.
        number: The number of the message on it.
    """
    chances = plan.chances()
    if not any(chances.values()):
        return None
    dice = random.Random(f"{plan.seed}/{carrier}/{number}")
    fallen, extent = dice.random(), dice.random()
    for name, chance in chances.items():
        fallen -= chance
        if fallen < 0.0:
            return _verdict(name, extent, plan.longest_delay)
    return None


def _verdict(name: str, extent: float, longest_delay: float) -> Verdict:
    """Returns the fault of that name; the duration, or the form of KILL, is drawn as well."""
    fault = Fault(name)
    if fault is Fault.DELAY:
        return Verdict(fault, extent * longest_delay)
    if fault is Fault.KILL and extent < 0.5:
        return Verdict(Fault.KILL_AFTER)
    return Verdict(fault)


def _check_seconds(name: str, value: float) -> None:
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{name} is a time in seconds, 0 or more (got {value})")
