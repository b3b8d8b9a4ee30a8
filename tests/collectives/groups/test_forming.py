"""How groups come about, simulated: any calls, any order of messages, nobody is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.collectives.groups.forming import (
    Action,
    Asked,
    Attempt,
    Failed,
    Formed,
    Forming,
    SendMessage,
    State,
)
from telegrad.collectives.messages import FormMessage, GroupKey
from telegrad.errors import CollectiveMismatchError, WorkerLostError
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
        self.under_way: list[tuple[int, int, SendMessage]] = []
        self.current: dict[int, Attempt] = {}
        self.keys: dict[Attempt, GroupKey] = {}
        self.causes: dict[Attempt, BaseException] = {}
        self.thresholds: dict[Attempt, tuple[int, ...] | None] = {}

    def call(self, r: int, ranks: Sequence[int], asks: Asked = ("", None)) -> Attempt:
        members = [self.workers[each] for each in ranks]
        attempt, actions = self.forming[r].begin(members, None, asks)
        self.current[r] = attempt
        self.perform(r, actions)
        return attempt

    def perform(self, r: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendMessage(peer, _):
                    self.under_way.append((r, peer.rank, action))
                case Formed(attempt, key, thresholds):
                    self.keys[attempt] = key
                    self.thresholds[attempt] = thresholds
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

    def call_in_turn(self, plans: Sequence[Sequence[Sequence[int]]]) -> list[list[Attempt]]:
        """Lets each worker make its calls, each after the one before, however far others are."""
        attempts: list[list[Attempt]] = [[] for _ in plans]
        while self.under_way or list(map(len, attempts)) != list(map(len, plans)):
            free = [
                r
                for r, plan in enumerate(plans)
                if len(attempts[r]) < len(plan) and not (attempts[r] and self.waits(r))
            ]
            if free and (not self.under_way or self.random.random() < 0.3):
                r = self.random.choice(free)
                attempts[r].append(self.call(r, plans[r][len(attempts[r])]))
            else:
                assert self.under_way, f"{[r for r in self.current if self.waits(r)]} hang"
                self.deliver_one()
        return attempts

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
    attempts = simulation.call_in_turn([ranks] * n)
    assert not simulation.causes
    for k in range(rounds):
        keys = {simulation.keys[attempts[r][k]] for r in range(n)}
        assert len(keys) == 1
    assert len({simulation.keys[attempt] for attempt in attempts[0]}) == rounds


ASKS = st.tuples(st.sampled_from(["", "", "", "star"]), st.sampled_from([None, None, (1,), (2,)]))


@settings(max_examples=400)
@given(st.lists(ASKS, min_size=2, max_size=4), st.integers(0, 2**32))
def test_the_first_member_states_thresholds_for_all(asks: list[Asked], seed: int) -> None:
    n, simulation = len(asks), Simulation(len(asks), seed)
    attempts = [simulation.call(r, range(n), asks[r]) for r in range(n)]
    simulation.deliver_all()
    agree = len({backend for backend, _ in asks}) == 1
    if agree and len({stated for _, stated in asks} - {None}) < 2:
        assert {simulation.thresholds[each] for each in attempts} == {asks[0][1]}
        assert len({simulation.keys[each] for each in attempts}) == 1
        return
    for attempt in attempts:
        words = str(simulation.causes[attempt])
        assert words.count(" with backend=") == 2, words
        assert words.endswith("with the same backend and the same table of thresholds")
        assert not agree or " and thresholds [" in words


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
    attempts = simulation.call_in_turn([[ranks, [0, 1, 2]] for ranks in CALLS[name]])
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


class Shrinking(Simulation):
    """Workers of which some die, and whose survivors call shrink_group until they have a group.

    Args:
        n: How many.
        seed: Of the order of messages, losses and calls.
    """

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, seed)
        self.dead: set[int] = set()
        self.known: list[set[int]] = [set() for _ in range(n)]

    @property
    def living(self) -> list[int]:
        return [r for r in range(len(self.workers)) if r not in self.dead]

    def shrink(self, r: int) -> None:
        ranks = [q for q in range(len(self.workers)) if q not in self.known[r]]
        members = [self.workers[q] for q in ranks]
        attempt, actions = self.forming[r].begin(members, sorted(self.known[r]))
        self.current[r] = attempt
        self.perform(r, actions)

    def perform(self, r: int, actions: list[Action]) -> None:
        super().perform(r, actions)
        if self.dead:
            self.under_way = [each for each in self.under_way if each[1] not in self.dead]

    def needs(self, r: int) -> bool:
        """Tells if a worker calls shrink_group (again), with the losses that it was told of."""
        attempt = self.current.get(r)
        if attempt is None:
            return True
        if attempt.state is State.FAILED:
            cause = self.causes[attempt]
            assert isinstance(cause, WorkerLostError), cause
            self.known[r].add(int(cause.worker[1:]))
            return True
        return attempt.state is State.FORMED and bool(self.known[r] & set(attempt.ranks))

    def die(self, q: int) -> None:
        self.dead.add(q)
        self.perform(q, [])

    def learn(self, r: int, q: int) -> None:
        self.known[r].add(q)
        error = WorkerLostError(f"w{q} is lost", worker=f"w{q}", incarnation=7)
        self.perform(r, self.forming[r].lose(self.workers[q], error))

    def step(self) -> bool:
        """Does something that may happen now; returns False if nothing may."""
        steps: list[Callable[[], None]] = [
            partial(self.shrink, r) for r in self.living if self.needs(r)
        ]
        steps += [self.deliver_one] * min(len(self.under_way), 4)
        if not steps:
            return False
        self.random.choice(steps)()
        return True


@settings(max_examples=400)
@given(st.integers(2, 5), st.integers(0, 2**32))
def test_survivors_that_know_of_different_losses_make_one_group(n: int, seed: int) -> None:
    """A loss is known at once at one survivor, and at others only if that one tells them."""
    simulation = Shrinking(n, seed)
    draw = simulation.random
    for q in draw.sample(range(n), draw.randrange(n)):
        for _ in range(draw.randrange(12)):
            simulation.step()
        simulation.die(q)
        for r in simulation.living:
            if r == simulation.living[0] or draw.random() < 0.4:
                simulation.learn(r, q)
    # What only those knew who died since, all hear of in the end.
    for q in simulation.dead:
        simulation.learn(draw.choice(simulation.living), q)
    while simulation.step():
        pass
    living = simulation.living
    current = [simulation.current[r] for r in living]
    assert [each.state for each in current] == [State.FORMED] * len(living)
    assert {each.ranks for each in current} == {tuple(living)}
    assert len({simulation.keys[each] for each in current}) == 1


@given(st.integers(0, 2**32))
def test_who_leaves_out_a_living_rank_makes_a_mismatch(seed: int) -> None:
    simulation = Simulation(3, seed)
    attempts = []
    for r, (ranks, lost) in enumerate([([0, 1, 2], [3]), ([0, 1], [3]), ([0, 1, 2], [])]):
        members = [simulation.workers[q] for q in ranks]
        attempt, actions = simulation.forming[r].begin(members, lost)
        attempts.append(attempt)
        simulation.perform(r, actions)
        for _ in range(simulation.random.randrange(len(simulation.under_way) + 1)):
            simulation.deliver_one()
    simulation.deliver_all()
    said = [str(simulation.causes[attempt]) for attempt in attempts[:2]]
    assert said[0] == said[1]
    assert "called shrink_group() to [0, 1, 2] without the lost [3], but rank 1" in said[0]
    assert "called shrink_group() to [0, 1] without the lost [3]; all members" in said[0]
    assert attempts[2] in simulation.causes


@given(st.integers(0, 2**32))
def test_new_group_of_a_rank_that_another_has_lost_ends(seed: int) -> None:
    """It raises the loss; the peer's call of shrink_group meets the next one."""
    simulation = Shrinking(3, seed)
    simulation.die(2)
    simulation.learn(0, 2)
    for r in simulation.random.sample([0, 1], 2):
        if r == 0:
            simulation.shrink(0)
        else:
            simulation.call(1, [0, 1, 2])
    attempt = simulation.current[0]
    simulation.deliver_all()
    (cause,) = simulation.causes.values()
    assert isinstance(cause, WorkerLostError)
    assert "worker 'w2' (incarnation 7) is lost: rank 0 ('w0') has lost it" in str(cause)
    wanted = simulation.call(1, [0, 1])
    simulation.deliver_all()
    assert simulation.keys[wanted] == simulation.keys[attempt]
