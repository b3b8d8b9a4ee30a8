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

The youngest wait finds the cycle. So a probe goes through waits alone that began no later than the
one it began with. In a chain of nested calls each wait is younger than its caller's, so the chain
costs one message a call. Any order of the waits finds each cycle, if it never changes: so the
clocks of the workers need not agree. Nothing is remembered between the messages: they say it all.

A wait that any of several calls may end (the first failure ends an `asyncio.gather`) is part of a
cycle only if every one of those is: nothing outside may be left that ends it. So a probe that comes
to one visits all of them, one after the other, before it has gone round (a knot):

     w0: f waits for g on w1, or h on w2    Probe [f], to visit g, h ───▶  w1: g waits for f
     w2: h waits for g                      ◀─── Check [f, g, h] ◀─── Probe [f, g], to visit h

Of calls that each need all of several a probe follows one way at a time, so it is several probes.

(Chandy, Misra, Haas 1983.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from telegrad.types import WorkerInfo

# Longer chains than this are not followed. Nobody has written one by hand; recursion ends sooner.
MAX_HOPS = 256
# Where calls that need all of several stand behind a wait that any of several ends, there are as
# many ways as products of their numbers. A probe that has visited the latter divides into so many.
MAX_FORKS = 16

Token: TypeAlias = tuple[int, ...]
Since: TypeAlias = tuple[float, int]


class ServedId(NamedTuple):
    """A served call: on which worker, by whom it was called, and the number that one drew.

    Both workers are incarnations. A stream that has yielded so many items is another one after the
    next of them: a wait for item 3 is no wait for a generator that has sent that already.
    """

    worker: int
    caller: int
    number: int
    items: int = 0


class Branch(NamedTuple):
    """A call that is waited for, and where it runs."""

    to: ServedId
    peer: WorkerInfo


class Step(NamedTuple):
    """One thing that a served call needs, as its worker sees it at this moment.

    It may be that others of its steps need more; each of them must come before it can end.

    Attributes:
        token: Names the waits that it consists of; never the same again once one of them ended.
        branches: The calls of which any may end this wait; each of them once.
        since: When this step was first seen there, and how many were seen before it at that moment.
        text: Who waits for what, in words.
    """

    token: Token
    branches: tuple[Branch, ...]
    since: Since
    text: str


class Hop(NamedTuple):
    """A step that was followed.

    Attributes:
        call: Who waits.
        token: See `Step`.
        to: Those of whom any may end the wait.
        worker: Where.
        text: See `Step`.
    """

    call: ServedId
    token: Token
    to: tuple[ServedId, ...]
    worker: WorkerInfo
    text: str


class Probe(NamedTuple):
    """Follows waits.

    Attributes:
        todo: The calls that are still to be visited, the next one first.
        hops: The calls that were, and how they wait.
        since: Of the wait that it began with.
        forks: Into how many it may divide.
    """

    todo: tuple[Branch, ...]
    hops: tuple[Hop, ...]
    since: Since
    forks: int


class Round(NamedTuple):
    """Goes round a chain that came back; `place` is the hop whose turn it is."""

    hops: tuple[Hop, ...]
    place: int


class Check(Round):
    """Goes round with the waits: it is looked whether each is still there."""


class Break(Round):
    """Goes round against the waits: each ends with an error, if it has not ended."""


Message: TypeAlias = Probe | Check | Break
Sends: TypeAlias = list[tuple[WorkerInfo, Message]]


def probes(me: WorkerInfo, call: ServedId, step: Step) -> Sends:
    """Begins to follow a wait of a call that is served here."""
    return _follow(me, call, step, Probe((), (), step.since, MAX_FORKS))


def on_probe(me: WorkerInfo, probe: Probe, steps: Sequence[Step]) -> Sends:
    """Takes a probe.

    Args:
        me: This worker.
        probe: What came.
        steps: How the call waits that it visits next; nothing when it is not served here, or runs.
    """
    visited, *rest = probe.todo
    old = [step for step in steps if step.since <= probe.since]
    left = probe._replace(todo=tuple(rest))
    if any(len(hop.to) > 1 for hop in probe.hops):
        old = old[: probe.forks]
        left = left._replace(forks=probe.forks // max(len(old), 1))
    return [send for step in old for send in _follow(me, visited.to, step, left)]


def _follow(me: WorkerInfo, call: ServedId, step: Step, probe: Probe) -> Sends:
    """Adds a hop to a probe and sends it on, or a check if it has visited all there is."""
    to = tuple(branch.to for branch in step.branches)
    hops = (*probe.hops, Hop(call, step.token, to, me, step.text))
    known = {hop.call for hop in hops} | {branch.to for branch in probe.todo}
    todo = (*probe.todo, *(branch for branch in step.branches if branch.to not in known))
    if not todo:
        return [(hops[0].worker, Check(hops, 0))] if _is_round(hops) else []
    if len(hops) + len(todo) > MAX_HOPS:
        return []
    return [(todo[0].peer, probe._replace(todo=todo, hops=hops))]


def _is_round(hops: Sequence[Hop]) -> bool:
    """Tells whether each hop leads back to the first; those that do not have a cycle of their own.

    That one is found by those inside, and once it was ended this wait may end, too.
    """
    leading = {hops[0].call}
    while True:
        more = {hop.call for hop in hops if not leading.isdisjoint(hop.to)} - leading
        if not more:
            return len(leading) == len(hops)
        leading |= more


def on_check(check: Check, steps: Sequence[Step]) -> Sends:
    """Takes a check.

    Args:
        check: What came.
        steps: How the call of its hop waits now.
    """
    hops, place = check
    if not any(is_at(hops[place], step.token, step.branches) for step in steps):
        return []
    if place == len(hops) - 1:
        return [(hops[place].worker, Break(hops, place))]
    return [(hops[place + 1].worker, Check(hops, place + 1))]


def on_break(broken: Break) -> Sends:
    """Takes a break: returns what is to be sent first; then the wait of its hop is to be ended."""
    hops, place = broken
    return [(hops[place - 1].worker, Break(hops, place - 1))] if place else []


def is_at(hop: Hop, token: Token, branches: Sequence[Branch]) -> bool:
    """Tells whether a wait is the one that a hop has followed."""
    return hop.token == token and hop.to == tuple(branch.to for branch in branches)
