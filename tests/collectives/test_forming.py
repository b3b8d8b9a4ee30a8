"""How groups come about, simulated: any calls, any order of messages, nobody is left behind."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.collectives.forming import Action, Attempt, Failed, Formed, Forming, Send, State
from telegrad.collectives.messages import FormMessage, GroupKey
from telegrad.errors import CollectiveMismatchError
from telegrad.types import WorkerInfo


class Simulation:
    """Some workers that call new_group one call after the other.

    Args:
        n: How many.
        seed: Of the order of messages.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.workers = [WorkerInfo(f"w{r}", r, 7) for r in range(n)]
        self.forming = [Forming(worker) for worker in self.workers]
        self.random = random.Random(seed)
        self.under_way: list[tuple[int, int, Send]] = []
        self.current: dict[int, Attempt] = {}
        self.keys: dict[Attempt, GroupKey] = {}
        self.causes: dict[Attempt, BaseException] = {}

    def call(self, r: int, ranks: Sequence[int]) -> Attempt:
        members = [self.workers[each] for each in ranks]
        attempt, actions = self.forming[r].begin(members)
        self.current[r] = attempt
        self.perform(r, actions)
        return attempt

    def perform(self, r: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, _):
                    self.under_way.append((r, peer.rank, action))
                case Formed(attempt, key):
                    self.keys[attempt] = key
                case Failed(attempt, cause):
                    assert attempt not in self.causes
                    self.causes[attempt] = cause

    def deliver_one(self) -> None:
        place = self.random.randrange(len(self.under_way))
        source, r, send = self.under_way.pop(place)
        forming, peer = self.forming[r], self.workers[source]
        if isinstance(send.message, FormMessage):
            self.perform(r, forming.on_form(peer, send.message))
        else:
            self.perform(r, forming.on_unformed(peer, send.message))

    def deliver_all(self) -> None:
        while self.under_way:
            self.deliver_one()

    def waits(self, r: int) -> bool:
        return self.current[r].state is State.FORMING

    def expire(self, r: int) -> None:
        """The deadline of a worker's call passes."""
        self.perform(r, self.forming[r].fail(self.current[r], TimeoutError(f"of {r}")))


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 2**32))
def test_the_same_calls_on_all(n: int, rounds: int, seed: int) -> None:
    """Each worker goes on when its call has returned, however far the others are."""
    simulation = Simulation(n, seed)
    ranks = [simulation.random.sample(range(n), n) for _ in range(rounds)]
    attempts: dict[int, list[Attempt]] = {r: [] for r in range(n)}
    while any(len(each) < rounds for each in attempts.values()) or simulation.under_way:
        free = [
            r
            for r in range(n)
            if len(attempts[r]) < rounds and not (attempts[r] and simulation.waits(r))
        ]
        if free and (not simulation.under_way or simulation.random.random() < 0.3):
            r = simulation.random.choice(free)
            attempts[r].append(simulation.call(r, ranks[len(attempts[r])]))
        else:
            simulation.deliver_one()
    assert not simulation.causes
    for k in range(rounds):
        keys = {simulation.keys[attempts[r][k]] for r in range(n)}
        assert len(keys) == 1
    assert len({simulation.keys[attempt] for attempt in attempts[0]}) == rounds


CALLS = {
    "one wants fewer": [[0, 1], [0, 1, 2], [0, 1, 2]],
    "each wants something else": [[0, 1, 2], [0, 1], [2, 0]],
    "another order": [[0, 1, 2], [0, 2, 1], [0, 1, 2]],
    "one is left out by one": [[0, 1, 2], [1, 2], [0, 1, 2]],
}


@settings(max_examples=400)
@given(st.sampled_from(sorted(CALLS)), st.integers(0, 2**32))
def test_a_mismatch_is_raised_once_on_each_and_the_next_call_works(name: str, seed: int) -> None:
    simulation = Simulation(3, seed)
    attempts: dict[int, list[Attempt]] = {r: [] for r in range(3)}
    plan = {r: [CALLS[name][r], [0, 1, 2]] for r in range(3)}
    while any(len(attempts[r]) < 2 for r in range(3)) or simulation.under_way:
        free = [
            r
            for r in range(3)
            if len(attempts[r]) < 2 and not (attempts[r] and simulation.waits(r))
        ]
        if free and (not simulation.under_way or simulation.random.random() < 0.3):
            r = simulation.random.choice(free)
            attempts[r].append(simulation.call(r, plan[r][len(attempts[r])]))
        else:
            assert simulation.under_way, f"{[r for r in range(3) if simulation.waits(r)]} hang"
            simulation.deliver_one()
    for r in range(3):
        first, second = attempts[r]
        assert isinstance(simulation.causes[first], CollectiveMismatchError), r
        assert str(simulation.causes[first]).count("called new_group([") == 2
        assert second in simulation.keys, r
        assert second not in simulation.causes
    assert len({simulation.keys[attempts[r][1]] for r in range(3)}) == 1


@settings(max_examples=400)
@given(st.integers(2, 4), st.integers(0, 2**32))
def test_after_any_calls_and_deadlines_a_group_of_all_comes_about(n: int, seed: int) -> None:
    simulation = Simulation(n, seed)
    draw = simulation.random
    for _ in range(draw.randrange(1, 6)):
        for r in range(n):
            if r not in simulation.current or not simulation.waits(r):
                others = draw.sample([q for q in range(n) if q != r], draw.randrange(0, n))
                simulation.call(r, draw.sample([r, *others], len(others) + 1))
            for _ in range(draw.randrange(len(simulation.under_way) + 1)):
                simulation.deliver_one()
            if draw.random() < 0.2:
                simulation.expire(r)
    simulation.deliver_all()
    for r in range(n):
        simulation.expire(r)
    everyone = list(range(n))
    for _ in range(50):
        for r in range(n):
            formed = simulation.current[r] in simulation.keys
            if not simulation.waits(r) and not (
                formed
                and simulation.current[r].ranks == tuple(everyone)
                and simulation.current[r].state is State.FORMED
            ):
                simulation.call(r, everyone)
        simulation.deliver_all()
        if all(simulation.current[r].state is State.FORMED for r in range(n)):
            break
    keys = {simulation.keys[simulation.current[r]] for r in range(n)}
    assert len(keys) == 1, "all have the same group in the end"


def test_who_is_missing() -> None:
    simulation = Simulation(3, 0)
    attempt = simulation.call(0, [0, 1, 2])
    simulation.call(2, [0, 1, 2])
    simulation.deliver_all()
    assert [worker.name for worker in simulation.forming[0].missing(attempt)] == ["w1"]


def test_alone() -> None:
    simulation = Simulation(1, 0)
    attempt = simulation.call(0, [0])
    assert simulation.keys[attempt].epoch == attempt.number


@given(st.integers(0, 2**32), st.booleans())
def test_a_loss_ends_no_group_of_others(seed: int, late: bool) -> None:
    """0 waits for 1, which dies; 2 has not called, or has; then 0 and 2 go on without it."""
    simulation = Simulation(3, seed)
    first = simulation.call(0, [0, 1, 2])
    if not late:
        simulation.call(2, [0, 1, 2])
    for _ in range(simulation.random.randrange(4)):
        if simulation.under_way:
            simulation.deliver_one()
    lost = simulation.workers[1]
    for r in (0, 2):
        simulation.perform(r, simulation.forming[r].lose(lost, ConnectionError("lost")))
    assert isinstance(simulation.causes[first], ConnectionError)
    again = [simulation.call(r, [0, 2]) for r in (2, 0)]
    simulation.deliver_all()
    assert len({simulation.keys[attempt] for attempt in again}) == 1
    assert not set(again) & set(simulation.causes)
