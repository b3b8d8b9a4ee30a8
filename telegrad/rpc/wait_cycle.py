"""Finds calls that wait for each other: what is sent along the waits and comes back, was a cycle.

A served call that has waited for a while sends a `Probe` to where the call runs that it waits for;
one that waits itself hands it on, with a `Hop` added. A probe that arrives where it began has gone
round; but each hop was seen at another moment, and a wait may have ended since. So a `Check` goes
round after it, and looks at each hop again. A wait has a token that no other has: one that was
there before the probe came back, and is there after, was there at that moment. All of them at once:
a cycle, which no reply can end any more. A `Break` goes round last, against the waits, and ends
them: so it is everywhere before the replies of calls that it has let go.

     w0: f waits for g on w1        Probe [f] ───▶  w1: g waits for h on w2
     w2: h waits for f on w0        ◀─── Probe [f, g, h]   ◀─── Probe [f, g]

The youngest wait finds the cycle. So a probe goes through waits alone that are at least as old as
the one it began with, and a chain of nested calls, each younger than its caller, costs one message
a call. What the messages say is all there is to know: nothing is remembered between them.

(Chandy, Misra, Haas 1983, for waits that need all of what they wait for.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

from telegrad.types import WorkerInfo

__all__ = [
    "Break",
    "Check",
    "End",
    "Hop",
    "Message",
    "Probe",
    "ServedId",
    "Step",
    "Token",
    "ended",
    "on_break",
    "on_check",
    "on_probe",
    "probes",
]

# Longer chains than this are not followed. Nobody has written one by hand; recursion ends sooner.
MAX_HOPS = 256

Token: TypeAlias = tuple[int, ...]


class ServedId(NamedTuple):
    """A served call: on which worker, by whom it was called, and the number that one drew.

    Both workers are incarnations. A stream that has yielded so many items is another one after the
    next of them: who waits for item 3 waits for no generator that has sent that already.
    """

    worker: int
    caller: int
    number: int
    items: int = 0


class Step(NamedTuple):
    """One way in which a served call waits for another one, as its worker sees it at this moment.

    Attributes:
        token: Names the waits that it consists of; never the same again once one of them ended.
        to: Which call it waits for.
        peer: Where that runs.
        age: Seconds since this step was first seen there.
        text: Who waits for what, in words.
    """

    token: Token
    to: ServedId
    peer: WorkerInfo
    age: float
    text: str


class Hop(NamedTuple):
    """A step of a chain that was followed.

    Attributes:
        call: Who waits.
        token: See `Step`.
        worker: Where, for a reader.
        text: See `Step`.
    """

    call: ServedId
    token: Token
    worker: WorkerInfo
    text: str


@final
@dataclass(frozen=True, slots=True)
class Probe:
    """Follows a chain.

    Attributes:
        to: The call that the last hop waits for.
        hops: The chain so far.
        age: Of the wait that it began with, when it began.
    """

    to: ServedId
    hops: tuple[Hop, ...]
    age: float


@final
@dataclass(frozen=True, slots=True)
class Check:
    """Goes round a chain that came back; `place` is the hop to be looked at."""

    hops: tuple[Hop, ...]
    place: int


@final
@dataclass(frozen=True, slots=True)
class Break:
    """Goes round a cycle; `place` is the hop to be ended."""

    hops: tuple[Hop, ...]
    place: int


@final
@dataclass(frozen=True, slots=True)
class End:
    """To be carried out here: the wait of hop `place` ends with an error, if it has not ended."""

    hops: tuple[Hop, ...]
    place: int


Message: TypeAlias = Probe | Check | Break
Sends: TypeAlias = list[tuple[WorkerInfo, Message]]


def probes(me: WorkerInfo, call: ServedId, step: Step) -> Sends:
    """Begins to follow a wait of a call that is served here."""
    return [(step.peer, Probe(step.to, (Hop(call, step.token, me, step.text),), step.age))]


def on_probe(me: WorkerInfo, probe: Probe, steps: Sequence[Step]) -> Sends:
    """Takes a probe.

    Args:
        me: This worker.
        probe: What came.
        steps: How the call waits that it leads to; nothing when it is not served here, or runs.
    """
    hops = probe.hops
    if probe.to == hops[0].call:
        return [(me, Check(hops, 0))]
    if len(hops) >= MAX_HOPS or any(hop.call == probe.to for hop in hops):
        return []  # a cycle that the first hop leads into: those inside find it
    sends: Sends = []
    for step in steps:
        if step.age >= probe.age:
            hop = Hop(probe.to, step.token, me, step.text)
            sends.append((step.peer, Probe(step.to, (*hops, hop), probe.age)))
    return sends


def on_check(check: Check, steps: Sequence[Step]) -> Sends:
    """Takes a check.

    Args:
        check: What came.
        steps: How the call of its hop waits now.
    """
    hops, place = check.hops, check.place
    if not _is_there(hops, place, steps):
        return []
    if place == len(hops) - 1:
        return [(hops[place].worker, Break(hops, place))]
    return [(hops[place + 1].worker, Check(hops, place + 1))]


def on_break(broken: Break) -> tuple[End, Sends]:
    """Takes a break: what is to be sent first, and then to be done here."""
    hops, place = broken.hops, broken.place
    sends: Sends = [(hops[place - 1].worker, Break(hops, place - 1))] if place else []
    return End(hops, place), sends


def ended(end: End, steps: Sequence[Step]) -> bool:
    """Tells whether the wait of an `End` has ended before."""
    return not _is_there(end.hops, end.place, steps)


def _is_there(hops: Sequence[Hop], place: int, steps: Sequence[Step]) -> bool:
    to = hops[(place + 1) % len(hops)].call
    return any(step.token == hops[place].token and step.to == to for step in steps)
