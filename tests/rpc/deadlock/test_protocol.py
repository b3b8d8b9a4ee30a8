"""What is told was a circle, and each circle is told: the protocol as values, in every order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st

from telegrad.rpc.deadlock import protocol as wait_cycle
from telegrad.rpc.deadlock.protocol import Branch, Break, Check, Message, Probe, ServedId, Step
from telegrad.types import WorkerInfo
from tests.repeated import on_examples


@pytest.fixture(autouse=True)
def all_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every combination followed."""
    monkeypatch.setattr(wait_cycle, "MAX_FORKS", 10**9)


def of_item(call: ServedId, items: int) -> ServedId:
    """Returns the name of the stream of a call before that item."""
    return ServedId(call.worker, call.caller, call.number, items)


@dataclass
class Workers:
    """A few workers, whose calls wait, and messages under way between them.

    A call's wait has a token.
    """

    chance: random.Random
    workers: list[WorkerInfo] = field(
        default_factory=lambda: [WorkerInfo(f"w{r}", r, 100 + r) for r in range(3)]
    )
    now: int = 0
    lived: dict[int, list[float]] = field(default_factory=dict)
    posted: list[tuple[WorkerInfo, Message]] = field(default_factory=list)
    breaks: int = 0

    def some_calls(self, count: int) -> list[ServedId]:
        return [ServedId(self.chance.choice(self.workers).incarnation, 99, n) for n in range(count)]

    def at(self, call: ServedId) -> WorkerInfo:
        return next(each for each in self.workers if each.incarnation == call.worker)

    def steps(self, call: ServedId) -> list[Step]:
        """Returns how a call waits now."""
        raise NotImplementedError

    def end(self, call: ServedId) -> None:
        """Ends the wait of a call."""
        raise NotImplementedError

    def check(self, message: Break, moment: float) -> None:
        """Checks that nothing outside could have ended a circle, which was there at a moment."""
        raise NotImplementedError

    def follow(self, call: ServedId) -> None:
        for step in self.steps(call):
            self.posted += wait_cycle.probes(self.at(call), call, step)

    def deliver(self, place: int | None = None) -> None:
        me, message = self.posted.pop(
            self.chance.randrange(len(self.posted)) if place is None else place
        )
        if isinstance(message, Probe):
            visited = message.todo[0]
            assert visited.peer == me
            self.posted += wait_cycle.on_probe(me, message, self.steps(visited.to))
        elif isinstance(message, Check):
            call = message.hops[message.place].call
            assert self.at(call) == me
            self.posted += wait_cycle.on_check(message, self.steps(call))
        else:
            assert message.hops[message.place].worker == me
            self.take_break(message)

    def take_break(self, message: Break) -> None:
        if message.place == len(message.hops) - 1:
            lives = [self.lived[hop.token[0]] for hop in message.hops]
            moment = max(begun for begun, _ in lives)
            assert moment < min(ended for _, ended in lives), message
            self.check(message, moment)
            self.breaks += 1
        self.posted += wait_cycle.on_break(message)
        hop = message.hops[message.place]
        if any(wait_cycle.is_at(hop, step.token, step.branches) for step in self.steps(hop.call)):
            self.end(of_item(hop.call, 0))

    def deliver_all(self) -> None:
        while self.posted:
            self.now += 1
            self.deliver()


@dataclass
class Model(Workers):
    """A call may need several things at once, each of which any of several calls may bring about."""

    waits: dict[ServedId, tuple[int, list[list[ServedId]]]] = field(default_factory=dict)
    most: int = 2  # alternatives

    def __post_init__(self) -> None:
        self.calls = self.some_calls(6)

    def steps(self, call: ServedId) -> list[Step]:
        if call not in self.waits:
            return []
        token, needs = self.waits[call]
        since = (float(self.lived[token][0]), 0)
        return [
            Step((token,), tuple(Branch(to, self.at(to)) for to in any_of), since, f"{call.number}")
            for any_of in needs
        ]

    def begin(self, call: ServedId, needs: list[list[ServedId]] | None = None) -> None:
        if needs is None:
            counts = [
                self.chance.randint(1, self.most) for _ in range(self.chance.choice([1, 1, 2]))
            ]
            needs = [self.chance.sample(self.calls, count) for count in counts]
        token = len(self.lived)
        self.waits[call] = (token, needs)
        self.lived[token] = [self.now, float("inf")]

    def end(self, call: ServedId) -> None:
        token, _ = self.waits.pop(call)
        self.lived[token][1] = self.now

    def check(self, message: Break, moment: float) -> None:
        inside = {hop.call for hop in message.hops}
        for hop in message.hops:
            assert inside.issuperset(hop.to), message
            assert hop.to, message

    def settle(self) -> None:
        """Lets every wait be followed, once it is a tick old, and every message arrive."""
        self.now += 1
        for call in self.calls:
            self.follow(call)
        self.deliver_all()

    def stuck(self) -> set[ServedId]:
        """The calls that nothing can end any more: who runs ends, and then who needs no other."""
        stuck = set(self.waits)
        while True:
            needs = {call: self.waits[call][1] for call in stuck}
            freed = {
                call
                for call in stuck
                if all(any(to not in stuck for to in any_of) for any_of in needs[call])
            }
            if not freed:
                return stuck
            stuck -= freed


@on_examples(st.randoms(use_true_random=True), st.integers(0, 60))
def test_whatever_is_broken_was_a_cycle_at_one_moment(chance: random.Random, events: int) -> None:
    model = Model(chance)
    for _ in range(events):
        model.now += 1
        call = chance.choice(model.calls)
        if call not in model.waits:
            model.begin(call)
        elif chance.random() < 0.3:
            model.end(call)  # a deadline, a loss
        if chance.random() < 0.5:
            model.follow(chance.choice(model.calls))
        while model.posted and chance.random() < 0.6:
            model.now += 1
            model.deliver()
    model.settle()
    assert not model.stuck()


@on_examples(st.randoms(use_true_random=True), st.integers(1, 3), st.integers(1, 6), few=60)
def test_what_is_told_is_what_nothing_can_end(
    chance: random.Random, most: int, waiting: int
) -> None:
    """Graphs at rest, against a search of all: with each round what is left is less, or told."""
    model = Model(chance, most=most)
    for call in chance.sample(model.calls, waiting):
        model.now += 1
        model.begin(call)
    while stuck := model.stuck():
        before = set(model.waits)
        model.settle()
        told = before - set(model.waits)
        assert told
        assert told <= stuck
    before = set(model.waits)
    model.settle()
    assert (set(model.waits), model.posted) == (before, [])


def test_a_probe_divides_its_forks_among_the_needs_that_it_follows() -> None:
    model = Model(random.Random(1))
    a, b, c, d, e, _ = model.calls
    forks = wait_cycle.MAX_FORKS
    model.begin(a, [[b, c]])
    [(_, probe)] = wait_cycle.probes(model.at(a), a, model.steps(a)[0])
    assert isinstance(probe, Probe)
    for needs, expected in (([[d]], [forks]), ([[d], [e]], [forks // 2] * 2)):
        model.begin(b, needs)
        later = Probe(probe.todo, probe.hops, (float(model.now + 1), 0), probe.forks)
        sent = [message for _, message in wait_cycle.on_probe(model.at(b), later, model.steps(b))]
        assert [each.forks for each in sent if isinstance(each, Probe)] == expected


@on_examples(st.randoms(use_true_random=True))
def test_the_youngest_wait_alone_finds_its_cycle(chance: random.Random) -> None:
    model = Model(chance)
    ring = chance.sample(model.calls, chance.randint(1, len(model.calls)))
    order = chance.sample(range(len(ring)), len(ring))
    for place in order:
        model.now += 1
        model.begin(ring[place], [[ring[(place + 1) % len(ring)]]])
    model.now += 1
    model.follow(ring[order[-1]])
    model.deliver_all()
    assert (model.waits, model.breaks) == ({}, 1)


@dataclass
class StreamModel(Workers):
    """Generators each of which reads another one; their items are under way like messages.

    A generator that runs yields, or wants the next item; one whose item is not here waits for it.
    """

    def __post_init__(self) -> None:
        self.calls = self.some_calls(4)
        shuffled = self.chance.sample(self.calls, len(self.calls))
        self.reads = dict(zip(self.calls, shuffled, strict=True))  # each has one reader
        self.sent = dict.fromkeys(self.calls, 0)
        self.here = dict.fromkeys(self.calls, 0)  # of the items that a call reads
        self.taken = dict.fromkeys(self.calls, 0)
        self.tokens: dict[ServedId, int] = {}  # of those that wait
        self.flights: dict[tuple[ServedId, int], list[float]] = {}

    def name(self, call: ServedId) -> ServedId:
        return of_item(call, self.sent[call])

    def steps(self, call: ServedId) -> list[Step]:
        name, call = call, of_item(call, 0)
        if call not in self.tokens or name != self.name(call):
            return []
        token, read = self.tokens[call], self.reads[call]
        since = (float(self.lived[token][0]), 0)
        to = Branch(of_item(read, self.taken[call]), self.at(read))
        return [Step((token,), (to,), since, f"{call.number}")]

    def want(self, call: ServedId) -> None:
        if self.here[call] > self.taken[call]:
            self.taken[call] += 1
        else:
            self.tokens[call] = len(self.lived)
            self.lived[self.tokens[call]] = [self.now, float("inf")]

    def end(self, call: ServedId) -> None:
        self.lived[self.tokens.pop(call)][1] = self.now

    def send(self, call: ServedId) -> None:
        self.flights[call, self.sent[call]] = [self.now, float("inf")]
        self.sent[call] += 1

    def arrive(self) -> None:
        """Brings the next item of one of the generators to its reader."""
        ways = [each for each in self.calls if self.here[each] < self.sent[self.reads[each]]]
        if not ways:
            return
        reader = self.chance.choice(ways)
        self.flights[self.reads[reader], self.here[reader]][1] = self.now
        self.here[reader] += 1
        if reader in self.tokens:
            self.end(reader)
            self.taken[reader] += 1

    def check(self, message: Break, moment: float) -> None:
        yielded = {of_item(hop.call, 0) for hop in message.hops}
        for (call, _), (sent, arrived) in self.flights.items():
            assert call not in yielded or arrived <= moment or sent > moment, message

    def any_event(self) -> None:
        self.now += 1
        call = self.chance.choice(self.calls)
        if call not in self.tokens:
            (self.send if self.chance.random() < 0.3 else self.want)(call)
        elif self.chance.random() < 0.1:
            self.end(call)  # a deadline, a loss
        if self.chance.random() < 0.3:
            self.arrive()
        if self.chance.random() < 0.5:
            self.follow(self.name(self.chance.choice(self.calls)))
        while self.posted and self.chance.random() < 0.6:
            self.now += 1
            self.deliver()


@on_examples(st.randoms(use_true_random=True), st.integers(0, 80))
def test_no_stream_is_broken_while_an_item_of_it_is_under_way(
    chance: random.Random, events: int
) -> None:
    model = StreamModel(chance)
    for _ in range(events):
        model.any_event()
    model.deliver_all()  # what is still under way may end a wait of an earlier circle
    while any(model.here[call] < model.sent[model.reads[call]] for call in model.calls):
        model.now += 1
        model.arrive()
    for call in model.calls:  # from now on all wait: every one of them is in a circle
        model.now += 1
        while call not in model.tokens:
            model.want(call)
    model.now += 1
    for call in model.calls:
        model.follow(model.name(call))
    model.deliver_all()
    assert not model.tokens
    assert model.breaks


def test_a_chain_of_calls_costs_one_message_each() -> None:
    """Each waits for a younger one, whose own probe would find what there is to find."""
    model = Model(random.Random(1))
    for call, to in zip(model.calls, model.calls[1:], strict=False):
        model.now += 1
        model.begin(call, [[to]])
    model.now += 1
    for call in model.calls:
        model.follow(call)
    handed_on = 0
    sent = len(model.posted)
    while model.posted:
        before = len(model.posted)
        model.deliver(0)
        handed_on += len(model.posted) - before + 1
    assert (sent, handed_on) == (len(model.calls) - 1, 0)
