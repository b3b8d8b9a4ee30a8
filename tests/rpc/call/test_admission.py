"""Admission as values: whatever the order of events, every call starts or is withdrawn."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from telegrad.rpc import Limits
from telegrad.rpc.call.admission import ASK, LOOKS, Budget, Grant, Move, NextStep, Window
from telegrad.rpc.call.admission_callee import CalleeAdmission
from telegrad.types import WorkerInfo
from telegrad.wire import read_body, write_body
from tests.repeated import on_examples

A, B, C = (WorkerInfo(name, rank, rank + 1) for rank, name in enumerate("abc"))
N = 3


def steps(moves: list[Move]) -> list[tuple[int, NextStep]]:
    return [(move.call, move.step) for move in moves]


def calls(grants: list[Grant]) -> list[int]:
    return [grant.call for grant in grants]


# -- the window ---------------------------------------------------------------------------------


def test_calls_within_the_allowance_start_at_once() -> None:
    window = Window(10, 100)
    assert [window.enter(call, 25) for call in range(4)] == [NextStep.START] * 4
    assert window.enter(4, 1) is NextStep.ASK
    assert window.enter(5, 0) is NextStep.START  # others overtake who asks
    assert window.leave(0) == []
    assert window.enter(6, 25) is NextStep.START


def test_without_a_place_calls_wait_in_order() -> None:
    window = Window(2, 10)
    assert window.enter(1, 1) is NextStep.START
    assert window.enter(2, 99) is NextStep.ASK
    assert [window.enter(call, size) for call, size in ((3, 1), (4, 99), (5, 1))] == (
        [NextStep.WAIT] * 3
    )
    assert steps(window.leave(1)) == [(3, NextStep.START)]
    assert window.leave(5) == []  # given up while it waited
    assert steps(window.leave(2)) == [(2, NextStep.WITHDRAW), (4, NextStep.ASK)]
    assert not window.admit(2)


# -- the budget ---------------------------------------------------------------------------------


def test_calls_are_admitted_while_there_is_room() -> None:
    budget = Budget(100)
    assert calls(budget.ask(A, 1, 60)) == [1]
    assert calls(budget.ask(A, 2, 60)) == []
    assert calls(budget.ask(B, 3, 10)) == []  # it fits, but nobody overtakes the head
    assert budget.in_use == 60
    expected = budget.expects
    assert budget.arrive(A, 1)
    assert (expected, budget.expects) == (True, False)
    assert not budget.arrive(A, 7)
    assert calls(budget.release(A, 1)) == [2, 3]
    assert calls(budget.release(A, 1)) == []
    assert budget.in_use == 70


def test_peers_take_turns() -> None:
    budget = Budget(10)
    budget.ask(C, 0, 10)
    for call in range(1, 4):
        budget.ask(A, call, 10)
    for call in range(4, 6):
        budget.ask(B, call, 10)
    order, current = [], Grant(C, 0)
    while budget.is_full:
        (current,) = budget.release(current.peer, current.call)
        order.append(current.call)
    assert order == [1, 4, 2, 5, 3]


# -- calls that stall ----------------------------------------------------------------------------


def test_calls_that_stall_let_one_more_in_at_a_time() -> None:
    budget = Budget(10)
    for call in range(3):
        budget.ask(A, call, 10)
    assert calls(budget.look({}, budget.changes)) == []  # one is coming: that is no stall
    for call in range(2):
        seen = budget.changes
        budget.arrive(A, call)
        assert calls(budget.look({}, seen)) == []  # it has come since
        assert calls(budget.look({}, budget.changes)) == [call + 1]
    budget.arrive(A, 2)
    assert calls(budget.look({}, budget.changes)) == []
    assert budget.in_use == 30


def test_a_stall_ends_even_where_a_worker_may_be_silent_for_ever() -> None:
    looks: list[tuple[float, Callable[[], None]]] = []
    posted: list[object] = []
    admission = CalleeAdmission(
        Limits(pending_bytes=1),
        math.inf,
        SimpleNamespace(after=lambda *look: looks.append(look)),  # type: ignore[arg-type]
        lambda peer, envelope: posted.append(read_body(envelope)),
        lambda peer: {},
    )
    for call in (1, 2):
        admission.on_ask(A, write_body(ASK, [call, 10]))
    assert admission.arrive(A, 1)
    while posted == [1]:
        seconds, look = looks.pop()
        assert seconds < math.inf
        look()
    assert posted == [1, 2]


def test_one_caller_may_hold_up_the_large_calls_of_others() -> None:
    """`docs/security.md` says how."""
    budget = Budget(10)
    for call, size in enumerate((9, 0, 0, 0)):
        budget.ask(A, call, size)
        budget.arrive(A, call)
    assert calls(budget.ask(B, 9, 5)) == []
    for call in (1, 2, 3):
        seen = budget.changes
        assert calls(budget.release(A, call)) == []
        assert calls(budget.look({}, seen)) == []
    assert calls(budget.look({}, budget.changes)) == [9]


# -- permits that are not used -------------------------------------------------------------------


def lapse(budget: Budget, *lapsed: Grant) -> list[Grant]:
    """Looks until these permits have lapsed, as pieces of all other calls come."""
    grants: list[Grant] = []
    for look in range(LOOKS + 1):
        missing = {each: None if each in lapsed else look for each in budget.coming}
        grants += budget.look(missing, budget.changes)
    return grants


def test_a_permit_that_lapses_lets_others_in() -> None:
    budget = Budget(10)
    assert calls(budget.ask(A, 1, 2**60)) == [1]
    budget.ask(A, 2, 2**60)
    budget.ask(B, 3, 10)
    budget.ask(C, 4, 10)
    assert budget.coming == [Grant(A, 1)]
    assert calls(lapse(budget, Grant(A, 1))) == [3]  # not its own next one
    assert budget.in_use == 10
    assert calls(budget.release(B, 3)) == [4]
    assert budget.asked_by(A) == 2  # a peer that asks on and on, and sends nothing, is bounded
    assert calls(budget.release(C, 4)) == [2]  # no other peer waits
    assert not budget.arrive(A, 9)


def test_a_call_that_comes_late_counts_from_then_on() -> None:
    budget = Budget(10)
    budget.ask(A, 1, 8)
    budget.ask(B, 2, 8)
    assert calls(lapse(budget, Grant(A, 1))) == [2]
    assert budget.arrive(A, 1)
    assert budget.in_use == 16
    assert calls(budget.ask(A, 3, 2)) == []
    assert calls(budget.release(B, 2)) == [3]
    assert calls(budget.release(A, 1)) == []
    assert (budget.in_use, budget.arrive(A, 1)) == (2, False)


def test_permits_lapse_when_nothing_comes_for_so_many_looks() -> None:
    slow, silent, waits = Grant(A, 1), Grant(B, 2), Grant(C, 3)
    budget = Budget(10)
    for each, size in ((slow, 5), (silent, 5), (waits, 5)):
        budget.ask(*each, size)

    def look(left: int | None) -> list[Grant]:
        return budget.look({slow: left, silent: None}, budget.changes)

    for number in range(1, LOOKS + 1):
        assert look(100 - number) == []
    assert look(50) == [waits]  # in place of the silent one
    assert budget.coming == [slow, waits]
    budget.arrive(*waits)
    assert look(None) == []  # on a new carrier, or whatever changes: counted anew
    for _ in range(LOOKS - 1):
        assert look(None) == []
    assert budget.coming == [slow]
    assert look(None) == []
    assert (budget.coming, budget.in_use) == ([], 5)


# -- any order of events ------------------------------------------------------------------------


@dataclass(eq=False)
class Call:
    number: int
    caller: WorkerInfo
    callee: WorkerInfo
    size: int
    inside: Call | None
    state: str = "new"  # then held, sent, served, ended, withdrawn, lost
    children: int = 0


@dataclass
class World:
    """Three workers; messages arrive in any order, as the session's envelopes may."""

    limits: Limits
    allowance: int = 0
    calls: dict[int, Call] = field(default_factory=dict)
    messages: list[tuple[str, WorkerInfo, WorkerInfo, Any]] = field(default_factory=list)
    dead: set[WorkerInfo] = field(default_factory=set)

    def __post_init__(self) -> None:
        ends = [(a, b) for a in (A, B, C) for b in (A, B, C)]
        places = self.limits.pending_calls_per_peer
        self.windows = {(a, b): Window(places, self.allowance) for a, b in ends}
        self.budgets = {each: Budget(self.limits.pending_bytes) for each in (A, B, C)}
        self.overdrawn = False
        self.lapsed = 0
        # What budgets and windows should hold: calls that asked, to their sizes; calls with a place.
        self.admitted: dict[WorkerInfo, dict[int, int]] = {each: {} for each in (A, B, C)}
        self.placed: set[int] = set()

    def call(self, a: WorkerInfo, b: WorkerInfo, size: int, inside: Call | None = None) -> Call:
        call = Call(len(self.calls), a, b, size, inside)
        self.calls[call.number] = call
        if inside is not None or a == b:
            if inside is not None:
                inside.children += 1
            self.send(call)
            return call
        call.state = "held"
        self.move([Move(call.number, self.windows[a, b].enter(call.number, size), size)])
        return call

    def send(self, call: Call) -> None:
        assert call.state in ("new", "held")
        call.state = "sent"
        self.messages.append(("call", call.caller, call.callee, call))

    def move(self, moves: list[Move]) -> None:
        for number, step, size in moves:
            a, b = self.calls[number].caller, self.calls[number].callee
            if step in (NextStep.START, NextStep.ASK):
                self.placed.add(number)
            if step is NextStep.START:
                self.send(self.calls[number])
            elif step is NextStep.ASK:
                self.messages.append(("ask", a, b, (number, size)))
            elif step is NextStep.WITHDRAW:
                self.messages.append(("withdraw", a, b, number))

    def grant(self, b: WorkerInfo, grants: list[Grant]) -> None:
        for grant in grants:
            self.admitted[b][grant.call] = self.calls[grant.call].size
            self.messages.append(("admit", b, grant.peer, grant.call))

    def deliver(self, place: int) -> None:
        kind, a, b, body = self.messages.pop(place)
        if kind == "ask":
            self.grant(b, self.budgets[b].ask(a, *body))
        elif kind == "withdraw":
            self.admitted[b].pop(body, None)
            self.grant(b, self.budgets[b].withdraw(a, body))
        elif kind == "admit":
            if self.windows[b, a].admit(body):
                self.send(self.calls[body])
        elif kind == "call":
            if self.budgets[b].arrive(a, body.number):  # one that lapsed counts from now on
                self.admitted[b][body.number] = body.size
            body.state = "served"
        else:
            body.state = "ended"
            self.close(body)
            self.placed.discard(body.number)
            self.move(self.windows[b, a].leave(body.number))

    def deliver_all(self) -> None:
        while self.messages:
            self.deliver(0)

    def end(self, call: Call) -> None:
        assert call.state == "served"
        assert not call.children
        call.state = "answered"
        self.messages.append(("reply", call.callee, call.caller, call))
        self.wait(call)

    def wait(self, call: Call) -> None:
        self.admitted[call.callee].pop(call.number, None)
        self.grant(call.callee, self.budgets[call.callee].release(call.caller, call.number))

    def withdraw(self, call: Call) -> None:
        assert call.state == "held"
        call.state = "withdrawn"
        ends = call.caller, call.callee
        self.placed.discard(call.number)
        self.move(self.windows[ends].leave(call.number))

    def close(self, call: Call) -> None:
        if call.inside is not None:
            call.inside.children -= 1

    def crash(self, gone: WorkerInfo) -> None:
        self.dead.add(gone)
        self.messages = [each for each in self.messages if gone not in each[1:3]]
        for each in self.calls.values():
            if each.caller == gone and each.state == "served":
                continue  # it runs on, for nobody
            if gone in (each.caller, each.callee) and each.state not in ("ended", "withdrawn"):
                if each.state != "lost":
                    self.close(each)
                each.state = "lost"
        for other in {A, B, C} - self.dead:
            self.forget(other, gone)
            self.windows[other, gone].lose()
            self.grant(other, self.budgets[other].lose(gone))
        self.messages = [each for each in self.messages if not self.dead & set(each[1:3])]

    def forget(self, other: WorkerInfo, gone: WorkerInfo) -> None:
        """A worker that lives on gives back what it has for one that is gone, but what runs."""
        for each in self.calls.values():
            if (each.caller, each.callee) == (other, gone):
                self.placed.discard(each.number)
            elif (each.caller, each.callee) == (gone, other) and each.state != "served":
                self.admitted[other].pop(each.number, None)

    def runnable(self) -> list[Call]:
        return [each for each in self.calls.values() if each.state == "served"]

    def finish(self) -> None:
        """Lets everything end: if anything is left then, something waits for ever."""
        while True:
            self.deliver_all()
            leaves = [each for each in self.runnable() if not each.children]
            if not leaves:
                break
            for each in leaves:
                if each.caller in self.dead:
                    each.state = "lost"
                    self.close(each)
                    self.wait(each)
                else:
                    self.end(each)
        states = {each.state for each in self.calls.values()}
        assert states <= {"ended", "withdrawn", "lost"}
        living = {A, B, C} - self.dead
        assert all(self.windows[a, b].is_empty for a in living for b in living)
        assert all(self.budgets[each].is_empty for each in living)
        assert all(self.budgets[each].in_use == 0 for each in living)


class Random:
    """Drives a world by events drawn from a seed.

    Args:
        seed: Of all that is drawn, the limits included.
        crashes: Whether workers may be lost.
    """

    def __init__(self, seed: int, *, crashes: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.crashes = crashes
        self.world = World(
            Limits(pending_calls_per_peer=rng.randint(1, 5), pending_bytes=rng.randint(1, 40)),
            allowance=rng.choice((0, 5, 20)),
        )

    def run(self, events: int = 120) -> World:
        for _ in range(events):
            self.step()
            if not self.world.overdrawn:
                self.check_budgets()
        self.world.finish()
        return self.world

    def step(self) -> None:
        world, rng = self.world, self.rng
        living = [each for each in (A, B, C) if each not in world.dead]
        running = [each for each in world.runnable() if each.callee not in world.dead]
        held = [each for each in world.calls.values() if each.state == "held"]
        match rng.choices(("call", "arrive", "end", "rare"), (4, 8, 3, 1))[0]:
            case "call":
                world.call(rng.choice(living), rng.choice(living), rng.randint(0, 50))
            case "arrive" if world.messages:
                world.deliver(rng.randrange(len(world.messages)))
            case "end" if running:
                call = rng.choice(running)
                if not call.children and call.caller not in world.dead:
                    world.end(call)
            case "rare":
                match rng.choice(("nest", "nest", "wait", "expire", "stall", "lapse", "crash")):
                    case "nest" if running:
                        outer, to = rng.choice(running), rng.choice(living)
                        world.call(outer.callee, to, rng.randint(0, 50), inside=outer)
                    case "wait" if running:
                        world.wait(rng.choice(running))
                    case "expire" if held:
                        world.withdraw(rng.choice(held))
                    case "stall":
                        at = rng.choice(living)
                        seen = world.budgets[at].changes - rng.choice((0, 0, 2))
                        moving = dict.fromkeys(world.budgets[at].coming, rng.getrandbits(30))
                        grants = world.budgets[at].look(moving, seen)
                        world.overdrawn |= bool(grants)
                        world.grant(at, grants)
                    case "lapse":
                        at = rng.choice(living)
                        if coming := world.budgets[at].coming:
                            lapsed = rng.sample(coming, min(len(coming), rng.randint(1, 2)))
                            world.overdrawn = True
                            world.lapsed += len(lapsed)
                            world.grant(at, lapse(world.budgets[at], *lapsed))
                    case "crash" if self.crashes and len(living) == N and rng.random() < 0.3:
                        world.crash(rng.choice(living))

    def check_budgets(self) -> None:
        world = self.world
        for callee in {A, B, C} - world.dead:
            held, budget = world.admitted[callee], world.budgets[callee]
            assert budget.in_use == sum(held.values())
            assert budget.in_use <= world.limits.pending_bytes or len(held) == 1
        for caller in {A, B, C} - world.dead:
            for peer in {A, B, C} - {caller}:
                taken = sum(
                    (world.calls[each].caller, world.calls[each].callee) == (caller, peer)
                    for each in world.placed
                )
                held_back = any(
                    each.state == "held" and (each.caller, each.callee) == (caller, peer)
                    for each in world.calls.values()
                    if each.number not in world.placed
                )
                assert taken <= world.limits.pending_calls_per_peer
                assert taken == world.limits.pending_calls_per_peer or not held_back


@on_examples(st.booleans(), st.integers(0, 2**32), few=80, many=600)
def test_whatever_the_order_every_call_starts_or_is_withdrawn(crashes: bool, seed: int) -> None:
    states = {each.state for each in Random(seed, crashes=crashes).run().calls.values()}
    assert "ended" in states


def test_the_random_worlds_are_not_trivial() -> None:
    worlds = [Random(seed, crashes=True).run() for seed in range(40)]
    ends = Counter(each.state for world in worlds for each in world.calls.values())
    assert min(ends[state] for state in ("ended", "withdrawn", "lost")) > 15
    assert sum(world.lapsed for world in worlds) > 5
    assert 5 < sum(len(world.dead) for world in worlds) < 40
