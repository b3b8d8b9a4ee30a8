"""The table of who reads: every interleaving of four actors, a signal, and telegrad's own loop.

The model has the steps of the threads around the table, as `socket_reader` takes them: what is read
is in the hand of a reader for a while, in which the role may move; whoever opens the gate of a
thread that polls wakes it. A state from which nothing goes on, before all have what they wait for,
is a message that was left unread or a wake-up that was lost.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.transport.io.reader import NOBODY, Holder, ReaderRole

ONE, OTHER, IDLE, LOOP = 1, 2, 3, 4  # numbers of threads, and of a loop
OUTER, INNER, SECOND, AWAITED, REQUEST = "outer", "inner", "second", "awaited", "request"

# What each actor does next.
BEGIN, READY, POLLS, ENDS, DONE = "begin", "ready", "polls", "ends", "done"
AWAY, LOOKS = "holds the role and works", "looks meanwhile"
OUTSIDE, ASLEEP = "no signal came", "asleep at its gate, as another one reads"


class World(NamedTuple):
    """All that the actors share, and where each of them is.

    Attributes:
        role: The table. It never changes: an event makes another one.
        one: What the first thread does next; `handler` to `loop` likewise.
        unread: What the sockets have.
        hands: By reader, what it has taken from them and not handed over.
        sent: What has come, so far.
        open: The gates that are open, by what opens them.
        woken: Whether the eventfd of a thread that polls is set: the waiter's, the idle one's.
        nested: Whether a signal handler of the first thread waits inside its wait.
        holds: Whether the first thread may hold the role after its wait.
    """

    role: ReaderRole
    one: str = BEGIN
    handler: str = OUTSIDE
    other: str = BEGIN
    idle: str = BEGIN
    loop: str = BEGIN
    unread: frozenset[str] = frozenset()
    hands: frozenset[tuple[str, str]] = frozenset()
    sent: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    woken: frozenset[str] = frozenset()
    state: tuple[object, ...] = ()
    holds: bool = False

    def where(self, actor: str) -> str:
        place: str = getattr(self, actor)
        return place

    def changed(self, **changes: Any) -> World:
        return self._replace(**changes)

    def to(self, actor: str, place: str, **changes: Any) -> World:
        return self.changed(**{actor: place, **changes})

    def told(self, event: str, *arguments: int, **options: bool) -> tuple[World, object]:
        """Tells the table of an event."""
        role, state, result = after_event(self.role, event, *arguments, **options)
        return self._replace(role=role, state=state), result

    def hand(self, reader: str) -> str:
        """What a reader has taken and not handed over."""
        return dict(self.hands).get(reader, "")

    def reads(self, reader: str) -> bool:
        """Whether that reader has the role, as the epolls have it."""
        holders = {
            "one": (Holder.WAITER, self.role.waiter == ONE),
            "other": (Holder.WAITER, self.role.waiter == OTHER),
            "idle": (Holder.IDLE, self.role.idle == IDLE),
            "loop": (Holder.USER_LOOP, self.role.user_loop == LOOP),
            "own": (Holder.OWN_LOOP, True),
        }
        holder, mine = holders[reader]
        return self.role.holder is holder and mine


@cache
def after_event(
    role: ReaderRole, event: str, *arguments: int, **options: bool
) -> tuple[ReaderRole, tuple[object, ...], object]:
    """Returns the table after an event, what it says of itself, and the event's result."""
    role = copy.deepcopy(role)
    result = getattr(role, event)(*arguments, **options)
    state = (role.waiter, role.holder, role.user_loop, role.idle, role.held, role.shared)
    return role, state, result


WAITERS = {"one": (ONE, OUTER), "handler": (ONE, INNER), "other": (OTHER, SECOND)}


def steps(world: World) -> Iterator[World]:
    """What may happen next."""
    yield from messages(world)
    for actor in WAITERS:
        yield from of_waiter(world, actor)
    yield from of_idle(world)
    yield from of_loop(world)
    for reader in ("own", "one", "other", "idle", "loop"):
        yield from of_reader(world, reader)


def messages(world: World) -> Iterator[World]:
    """A request comes at any time, a reply once somebody waits for it."""
    asked = {OUTER: "one", INNER: "handler", SECOND: "other", AWAITED: "loop"}
    for message in {OUTER, INNER, SECOND, AWAITED, REQUEST} - world.sent:
        if message == REQUEST or world.where(asked[message]) not in (BEGIN, OUTSIDE):
            yield world.changed(unread=world.unread | {message}, sent=world.sent | {message})


def of_waiter(world: World, actor: str) -> Iterator[World]:
    thread, reply = WAITERS[actor]
    place = world.where(actor)
    if actor == "one" and world.where("handler") not in (OUTSIDE, DONE):
        return  # its handler runs
    if world.hand("other" if actor == "other" else "one"):
        return
    if actor == "handler" and place == OUTSIDE and world.where("one") == POLLS:
        yield world.to(actor, BEGIN)  # a signal came
    if place == BEGIN:
        after, mine = world.told("wait_begins", thread)
        yield after.to(actor, READY if mine else ASLEEP)
    elif place == ASLEEP and reply in world.open:
        yield world.to(actor, DONE)
    elif place == READY:
        yield world.to(actor, ENDS if reply in world.open else POLLS)
    elif place == POLLS and "waiter" in world.woken:
        yield world.to(actor, READY, woken=world.woken - {"waiter"})
    elif place == ENDS:
        after, _ = world.told("wait_ends", thread)
        woken = after.woken | ({"waiter"} if after.role.waiter else set())
        yield after.to(actor, DONE, woken=woken)
    if actor == "one" and world.holds:
        yield from of_holder(world)


def of_holder(world: World) -> Iterator[World]:
    """The first thread holds the role after its wait: it looks, or leaves the role, or loses it."""
    place, role = world.where("one"), world.role
    if place in (ENDS, LOOKS):
        after, _ = world.told("wait_ends", ONE, holds=True)
        yield after.to("one", AWAY)
    elif place == AWAY:
        if role.waiter in (NOBODY, ONE) and world.unread:
            after, _ = world.told("wait_begins", ONE)
            yield after.to("one", LOOKS)
        leaves = role.waiter == ONE
        after, _ = world.told("hold_ends") if leaves else (world, None)
        yield after.to("one", DONE)
        if role.held:  # the loop has seen that it did not look for long
            yield world.told("hold_ends")[0]


def of_idle(world: World) -> Iterator[World]:
    place = world.where("idle")
    if world.hand("idle"):
        return
    if place == BEGIN:
        after, _ = world.told("idle_begins", IDLE)
        yield after.to("idle", READY)
    elif place == READY:
        yield world.to("idle", ENDS if REQUEST in world.open else POLLS)
    elif place == POLLS and "idle" in world.woken:
        yield world.to("idle", READY, woken=world.woken - {"idle"})
    elif place == ENDS:
        after, _ = world.told("idle_ends")
        yield after.to("idle", DONE)


def of_loop(world: World) -> Iterator[World]:
    place = world.where("loop")
    if world.hand("loop"):
        return
    if place == BEGIN:
        after, _ = world.told("await_begins", LOOP)
        yield after.to("loop", POLLS)
    elif place in (POLLS, READY):
        if place == POLLS:  # user code blocks it: a tick takes the role, and it comes back later
            after, _ = world.told("await_ends", LOOP)
            yield after.to("loop", READY)
        if AWAITED in world.open:
            after, _ = world.told("await_ends", LOOP)
            yield after.to("loop", DONE)


def of_reader(world: World, reader: str) -> Iterator[World]:
    """Takes messages from the sockets, or hands over what it has."""
    handler = reader == "one" and world.where("handler") in (READY, POLLS)
    actor = "handler" if handler else reader
    if held := world.hand(reader):
        yield handed_over(world, reader, actor, held)
        return
    asleep = reader == "own" or world.where(actor) in (POLLS, LOOKS)
    if asleep and world.reads(reader):
        for message in world.unread:
            yield world.changed(
                unread=world.unread - {message}, hands=world.hands | {(reader, message)}
            )


def handed_over(world: World, reader: str, actor: str, message: str) -> World:
    """Opens the gate of whoever waits for a message, and wakes it if it polls in another thread."""
    woken = set(world.woken)
    owners = {OUTER: "one", INNER: "one", SECOND: "other", REQUEST: "idle"}
    if (owner := owners.get(message)) is not None and owner != reader:
        waits = ONE if owner == "one" else OTHER
        if owner == "idle" and world.where("idle") != DONE:
            woken.add("idle")
        elif owner != "idle" and world.role.waiter == waits:
            woken.add("waiter")
    after = world.changed(
        hands=world.hands - {(reader, message)},
        open=world.open | {message},
        woken=frozenset(woken),
    )
    if reader in ("own", "loop"):
        return after
    return after.to(actor, LOOKS if world.where(actor) == LOOKS else READY)


# The second world has no signal handler and no user loop, and so fewer states.
WORLDS = {
    "all actors": World(ReaderRole()),
    "one that holds the role": World(ReaderRole(), holds=True, sent=frozenset({INNER, AWAITED}))
    .to("handler", DONE)
    .to("loop", DONE),
}


@pytest.mark.timeout(240)  # it computes for 5 s, which a busy machine makes a minute
@pytest.mark.parametrize(
    "kind", [pytest.param("all actors", marks=pytest.mark.long), "one that holds the role"]
)
def test_every_interleaving_comes_to_an_end(kind: str) -> None:
    start = WORLDS[kind]
    seen, border, ends = {start[1:]}, [start], 0
    while border:
        world = border.pop()
        after = list(steps(world))
        if not after:
            ends += 1
            for actor in ("one", "other", "idle", "loop"):
                assert world.where(actor) == DONE, world
            assert not world.unread
            assert not world.hands
            assert world.role.holder is Holder.OWN_LOOP
        fresh = [each for each in after if each[1:] not in seen]
        seen.update(each[1:] for each in fresh)
        border += fresh
    assert ends
    assert len(seen) > (10_000 if kind == "all actors" else 1_000), len(seen)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "wait",
                "ends",
                "holds",
                "hold",
                "hold ends",
                "tick",
                "taken away",
                "await",
                "await ends",
                "idle",
                "idle ends",
            ]
        ),
        st.integers(1, 3),
    )
)


@given(EVENTS)
def test_the_best_of_those_that_are_there_has_the_role(events: list[tuple[str, int]]) -> None:
    role = ReaderRole()
    waiter, depth, away, shared, loops, idle = 0, 0, False, 0, list[int](), 0
    for event, number in events:
        if event == "wait":
            mine = not depth or waiter == number
            assert role.wait_begins(number) is mine
            shared = shared if mine else number
            waiter, depth = (number, depth + 1) if mine else (waiter, depth)
            away = away and not mine
        elif event in ("ends", "holds") and depth:
            role.wait_ends(waiter, holds=event == "holds")
            depth -= 1
            away = not depth and event == "holds" and shared in (0, waiter)
        elif event == "hold":
            if not depth and not away and shared in (0, number):
                waiter, away = number, True
            assert role.hold_begins(number) is (away and waiter == number)
        elif event == "hold ends":
            role.hold_ends()
            away = False
        elif event == "tick":
            role.shared = shared = 0
        elif event == "taken away":
            idle = 0 if role.holder is Holder.IDLE else idle
            role.take_away()
            waiter, depth, away = (0, 0, False) if depth or away else (waiter, depth, away)
        elif event == "await":
            role.await_begins(number)
            loops = [each for each in loops if each != number] + [number]
        elif event == "await ends":
            role.await_ends(number)
            loops = [each for each in loops if each != number]
        elif event == "idle":
            role.idle_begins(number)
            idle = number
        elif event == "idle ends":
            role.idle_ends()
            idle = 0
        assert role.waiter == (waiter if depth or away else 0)
        assert role.held is away
        assert role.user_loop == (loops[-1] if loops else 0)
        assert role.idle == idle
        best = Holder.IDLE if idle else Holder.OWN_LOOP
        best = Holder.USER_LOOP if loops else best
        assert role.holder is (Holder.WAITER if depth or away else best)
