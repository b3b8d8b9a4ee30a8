"""Finds calls that wait for each other: a probe that follows the waits and comes back.

A served call that has waited for a while sends a `Probe` to the worker of the call that it waits
for. If that call waits itself, its worker adds a `Hop` and hands the probe on. A probe that arrives
where it began has gone round. But each hop was seen at another moment, and a wait may have ended
since. So a `Check` goes round after the probe, and looks at each hop again. A wait has a token that
no other wait has. If it was there before the probe came back and is there after that, it was there
at that moment, as were all others: a cycle, which no reply can end any more. A `Break` goes round
last, against the waits, and ends them. So it is everywhere before the replies of the freed calls.

     w0: f waits for g on w1        Probe [f] ───▶  w1: g waits for h on w2
     w2: h waits for f on w0        ◀─── Probe [f, g, h]   ◀─── Probe [f, g]

The youngest wait finds the cycle. So a probe follows only waits that began no later than its first
one. In a chain of nested calls each wait is younger than its caller's, so the chain costs one
message a call. Any fixed order of the waits finds each cycle, so the clocks of the workers need not
agree. No worker keeps state between the messages: they contain all of it.

A wait that any of several calls may end (the first failure ends an `asyncio.gather`) is part of a
cycle only if each of these calls is: no call outside may be left that ends it. So a probe that
comes to such a wait visits all of them, one after the other, before it has gone round (a knot):

     w0: f waits for g on w1, or h on w2    Probe [f], to visit g, h ───▶  w1: g waits for f
     w2: h waits for g                      ◀─── Check [f, g, h] ◀─── Probe [f, g], to visit h

If a call needs all of several calls, a probe follows one of them; several probes leave then.

(Chandy, Misra, Haas 1983.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from telegrad.types import WorkerInfo

# Longer chains than this are not followed. No program has one by hand; recursion ends sooner.
MAX_HOPS = 256
# Calls that need all of several may stand behind a wait that any of several ends. The ways through
# both are as many as the product of their numbers; a probe divides into at most so many.
MAX_FORKS = 16

Token: TypeAlias = tuple[int, ...]
Since: TypeAlias = tuple[float, int]


class ServedId(NamedTuple):
    """The name of a served call: its worker, its caller, and the number that the caller drew.

    Both workers are incarnations. A stream gets another name with each item that it has yielded: a
    wait for item 3 is no wait for a generator that has sent that item already.
    """

    worker: int
    caller: int
    number: int
    items: int = 0


class Branch(NamedTuple):
    """A call that another call waits for, and the worker that runs it."""

    to: ServedId
    peer: WorkerInfo


class Step(NamedTuple):
    """One thing that a served call needs, as its worker sees it at this moment.

    A call may have several steps; it can end only after all of them.

    Attributes:
        token: The name of the waits that it consists of; another one once one of them has ended.
        branches: The calls of which any may end this wait; each of them once.
        since: The time at which its worker first saw it, and the number of steps seen before it
            then.
        text: The wait in words.
    """

    token: Token
    branches: tuple[Branch, ...]
    since: Since
    text: str


class Hop(NamedTuple):
    """A step that was followed.

    Attributes:
        call: The call that waits.
        token: See `Step`.
        to: The calls of which any may end the wait.
        worker: The worker that serves the waiting call.
        text: See `Step`.
    """

    call: ServedId
    token: Token
    to: tuple[ServedId, ...]
    worker: WorkerInfo
    text: str


class Probe(NamedTuple):
    """A message that follows waits.

    Attributes:
        todo: The calls that are still to be visited, the next one first.
        hops: The steps of the calls that were visited.
        since: The `since` of its first step.
        forks: The number of probes into which it may still divide.
    """

    todo: tuple[Branch, ...]
    hops: tuple[Hop, ...]
    since: Since
    forks: int


class Round(NamedTuple):
    """A message that goes round a chain that came back; `place` is the hop whose turn it is."""

    hops: tuple[Hop, ...]
    place: int


class Check(Round):
    """A round along the waits: each worker looks if its wait is still there."""


class Break(Round):
    """A round against the waits: each that has not ended ends with an error."""


Message: TypeAlias = Probe | Check | Break
Sends: TypeAlias = list[tuple[WorkerInfo, Message]]


def probes(me: WorkerInfo, call: ServedId, step: Step) -> Sends:
    """Begins to follow a wait of a call that is served here."""
    return _follow(me, call, step, Probe((), (), step.since, MAX_FORKS))


def on_probe(me: WorkerInfo, probe: Probe, steps: Sequence[Step]) -> Sends:
    """Takes a probe; `steps` are the steps of the call that it visits next.

    There are none if that call is not served here, or runs.
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
    """Returns True if each hop leads back to the first one.

    A hop that does not leads into a cycle without the first one. The waits of that cycle find it;
    once it was ended, this wait may end, too.
    """
    leading = {hops[0].call}
    while True:
        more = {hop.call for hop in hops if not leading.isdisjoint(hop.to)} - leading
        if not more:
            return len(leading) == len(hops)
        leading |= more


def on_check(check: Check, steps: Sequence[Step]) -> Sends:
    """Takes a check; `steps` are the steps of the call of its hop now."""
    hops, place = check
    if not any(is_at(hops[place], step.token, step.branches) for step in steps):
        return []
    if place == len(hops) - 1:
        return [(hops[place].worker, Break(hops, place))]
    return [(hops[place + 1].worker, Check(hops, place + 1))]


def on_break(broken: Break) -> Sends:
    """Takes a break; the caller sends what this returns, and then ends the wait of its hop."""
    hops, place = broken
    return [(hops[place - 1].worker, Break(hops, place - 1))] if place else []


def is_at(hop: Hop, token: Token, branches: Sequence[Branch]) -> bool:
    """Returns True if a wait is the one that a hop has followed."""
    return hop.token == token and hop.to == tuple(branch.to for branch in branches)
