"""Calls that wait for each other are told, with the chain; no others are."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import rpc
from telegrad.errors import DecodeError, WaitCycleError
from telegrad.rpc import Agent, WaitProbes, wait_cycle, wait_probe
from telegrad.rpc.blocking import enter_task_run
from telegrad.rpc.interceptor import CallRecord
from telegrad.rpc.served_call import ServedCall
from telegrad.rpc.wait_cycle import Break, Check, Message, Probe, ServedId, Step
from telegrad.rpc.wait_graph import Way, _has_limit
from telegrad.testing.leaks import wait_until_gone
from telegrad.types import WorkerInfo
from tests.rpc import remote_code, waiting_code
from tests.rpc.conftest import Job, MakeJob

PACE = 0.2  # of the real seconds


@pytest.fixture(autouse=True)
def quick_looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the agents of a job look, and follow waits, sooner; an own clock shows the real pace."""
    if "make_job" in request.fixturenames:
        for name in ("LOOK_SECONDS", "STALE_SECONDS"):
            monkeypatch.setattr(wait_probe, name, PACE * getattr(wait_probe, name))


# -- the protocol, as values ----------------------------------------------------------------------


@dataclass
class Model:
    """Calls that wait for calls, on a few workers, and messages under way between those.

    A call's wait has a token; it may wait for several calls at once.
    """

    chance: random.Random
    workers: list[WorkerInfo] = field(
        default_factory=lambda: [WorkerInfo(f"w{r}", r, 100 + r) for r in range(3)]
    )
    now: int = 0
    waits: dict[ServedId, tuple[int, list[ServedId]]] = field(default_factory=dict)
    lived: dict[int, list[float]] = field(default_factory=dict)
    posted: list[tuple[WorkerInfo, Message]] = field(default_factory=list)
    breaks: int = 0

    def __post_init__(self) -> None:
        self.calls = [
            ServedId(self.chance.choice(self.workers).incarnation, 99, number)
            for number in range(6)
        ]

    def at(self, call: ServedId) -> WorkerInfo:
        return next(each for each in self.workers if each.incarnation == call.worker)

    def steps(self, call: ServedId) -> list[Step]:
        if call not in self.waits:
            return []
        token, targets = self.waits[call]
        age = float(self.now - self.lived[token][0])
        return [Step((token,), to, self.at(to), age, f"{call.number}") for to in targets]

    def begin(self, call: ServedId) -> None:
        count = self.chance.choice([1, 1, 2])
        token = len(self.lived)
        self.waits[call] = (token, self.chance.sample(self.calls, count))
        self.lived[token] = [self.now, float("inf")]

    def end(self, call: ServedId) -> None:
        token, _ = self.waits.pop(call)
        self.lived[token][1] = self.now

    def follow(self, call: ServedId) -> None:
        for step in self.steps(call):
            self.posted += wait_cycle.probes(self.at(call), call, step)

    def deliver(self, place: int) -> None:
        me, message = self.posted.pop(place)
        if isinstance(message, Probe):
            self.posted += wait_cycle.on_probe(me, message, self.steps(message.to))
        elif isinstance(message, Check):
            call = message.hops[message.place].call
            assert self.at(call) == me
            self.posted += wait_cycle.on_check(message, self.steps(call))
        else:
            self.take_break(message)

    def take_break(self, message: Break) -> None:
        if message.place == len(message.hops) - 1:
            lives = [self.lived[hop.token[0]] for hop in message.hops]
            assert max(begun for begun, _ in lives) < min(ended for _, ended in lives), message
            self.breaks += 1
        end, sends = wait_cycle.on_break(message)
        self.posted += sends
        call = message.hops[message.place].call
        if not wait_cycle.ended(end, self.steps(call)):
            self.end(call)

    def settle(self) -> None:
        """Lets every wait be followed, once it is a tick old, and every message arrive."""
        self.now += 1
        for call in self.calls:
            self.follow(call)
        while self.posted:
            self.now += 1
            self.deliver(self.chance.randrange(len(self.posted)))

    def in_cycles(self) -> set[ServedId]:
        """The calls that wait, perhaps through others, for themselves."""

        def reached(call: ServedId, seen: set[ServedId]) -> set[ServedId]:
            for to in self.waits.get(call, (0, []))[1]:
                if to not in seen:
                    seen.add(to)
                    reached(to, seen)
            return seen

        return {call for call in self.calls if call in reached(call, set())}


@given(st.randoms(use_true_random=True), st.integers(0, 60))
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
            model.deliver(chance.randrange(len(model.posted)))
    model.settle()
    assert not model.in_cycles()


@given(st.randoms(use_true_random=True))
def test_the_youngest_wait_alone_finds_its_cycle(chance: random.Random) -> None:
    model = Model(chance)
    ring = chance.sample(model.calls, chance.randint(1, len(model.calls)))
    order = chance.sample(range(len(ring)), len(ring))
    for place in order:
        model.now += 1
        token = len(model.lived)
        model.waits[ring[place]] = (token, [ring[(place + 1) % len(ring)]])
        model.lived[token] = [model.now, float("inf")]
    model.now += 1
    model.follow(ring[order[-1]])
    while model.posted:
        model.deliver(chance.randrange(len(model.posted)))
    assert (model.waits, model.breaks) == ({}, 1)


@dataclass
class StreamModel:
    """Generators each of which reads another one; their items are under way like messages.

    A generator that runs yields, or wants the next item; one whose item is not here waits for it.
    """

    chance: random.Random
    now: int = 0
    posted: list[tuple[WorkerInfo, Message]] = field(default_factory=list)
    breaks: int = 0

    def __post_init__(self) -> None:
        self.workers = [WorkerInfo(f"w{r}", r, 100 + r) for r in range(3)]
        chosen = self.chance.choice
        self.calls = [ServedId(chosen(self.workers).incarnation, 99, n) for n in range(4)]
        shuffled = self.chance.sample(self.calls, len(self.calls))
        self.reads = dict(zip(self.calls, shuffled, strict=True))  # each has one reader
        self.sent = dict.fromkeys(self.calls, 0)
        self.here = dict.fromkeys(self.calls, 0)  # of the items that a call reads
        self.taken = dict.fromkeys(self.calls, 0)
        self.tokens: dict[ServedId, int] = {}  # of those that wait
        self.lived: dict[int, list[float]] = {}
        self.flights: dict[tuple[ServedId, int], list[float]] = {}

    def at(self, call: ServedId) -> WorkerInfo:
        return next(each for each in self.workers if each.incarnation == call.worker)

    def name(self, call: ServedId) -> ServedId:
        return call._replace(items=self.sent[call])

    def steps(self, name: ServedId) -> list[Step]:
        call = name._replace(items=0)
        if call not in self.tokens or name != self.name(call):
            return []
        token, read = self.tokens[call], self.reads[call]
        age = float(self.now - self.lived[token][0])
        to = read._replace(items=self.taken[call])
        return [Step((token,), to, self.at(read), age, f"{call.number}")]

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

    def follow(self, call: ServedId) -> None:
        for step in self.steps(self.name(call)):
            self.posted += wait_cycle.probes(self.at(call), self.name(call), step)

    def deliver(self) -> None:
        me, message = self.posted.pop(self.chance.randrange(len(self.posted)))
        if isinstance(message, Probe):
            self.posted += wait_cycle.on_probe(me, message, self.steps(message.to))
        elif isinstance(message, Check):
            steps = self.steps(message.hops[message.place].call)
            self.posted += wait_cycle.on_check(message, steps)
        else:
            self.take_break(message)

    def take_break(self, message: Break) -> None:
        if message.place == len(message.hops) - 1:
            lives = [self.lived[hop.token[0]] for hop in message.hops]
            moment = max(begun for begun, _ in lives)
            assert moment < min(ended for _, ended in lives), message
            yielded = {hop.call._replace(items=0) for hop in message.hops}
            for (call, _), (sent, arrived) in self.flights.items():
                assert call not in yielded or arrived <= moment or sent > moment, message
            self.breaks += 1
        end, sends = wait_cycle.on_break(message)
        self.posted += sends
        name = message.hops[message.place].call
        if not wait_cycle.ended(end, self.steps(name)):
            self.end(name._replace(items=0))

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
            self.follow(self.chance.choice(self.calls))
        while self.posted and self.chance.random() < 0.6:
            self.now += 1
            self.deliver()


@given(st.randoms(use_true_random=True), st.integers(0, 80))
def test_no_stream_is_broken_while_an_item_of_it_is_under_way(
    chance: random.Random, events: int
) -> None:
    model = StreamModel(chance)
    for _ in range(events):
        model.any_event()
    while model.posted:  # what is still under way may end a wait of an earlier circle
        model.now += 1
        model.deliver()
    while any(model.here[call] < model.sent[model.reads[call]] for call in model.calls):
        model.now += 1
        model.arrive()
    for call in model.calls:  # from now on all wait: every one of them is in a circle
        model.now += 1
        while call not in model.tokens:
            model.want(call)
    model.now += 1
    for call in model.calls:
        model.follow(call)
    while model.posted:
        model.now += 1
        model.deliver()
    assert not model.tokens
    assert model.breaks


def test_a_chain_of_calls_costs_one_message_each() -> None:
    """Each waits for a younger one, whose own probe would find what there is to find."""
    model = Model(random.Random(1))
    for call, to in zip(model.calls, model.calls[1:], strict=False):
        model.now += 1
        token = len(model.lived)
        model.waits[call] = (token, [to])
        model.lived[token] = [model.now, float("inf")]
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


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        [[1, 2, 3, 0], [], 0.0],
        [[1, 2, 3], [[[1, 2, 3, 0], [], ["w", 0, 1], ""]], 0.0],
        [[1, 2, 3, 0], [[[1, 2, 3, 0], [], ["w", 0, 1], 5]], 0.0],
        [[1, 2, "3", 0], [[[1, 2, 3, 0], [], ["w", 0, 1], ""]], 0.0],
        [[1, 2, 3, 0], [[[1, 2, 3, 0], [True], ["w", 0, 1], ""]], 0.0],
        [[1, 2, 3, 0], [[[1, 2, 3, 0], [], ["w", 0], ""]], 0.0],
        [[1, 2, 3, 0], [[[1, 2, 3, 0], [], ["w", 0, 1], ""]], 1],
    ],
)
def test_garbage_is_no_probe(body: object, job: Job) -> None:
    before = job.agents[1].attached(WaitProbes).followed
    job.agents[0].post(job.agents[1].info, wait_probe.PROBE, body)
    job.agents[0].post(job.agents[1].info, wait_probe.CHECK, body)
    job.agents[0].post(job.agents[1].info, wait_probe.BREAK, body)
    assert job.on(0, rpc.rpc_sync, "w1", remote_code.who) == "w1"  # it came after them
    assert job.agents[1].attached(WaitProbes).followed == before
    with pytest.raises(DecodeError):
        wait_probe._round(body)


class OneCallThatWaits:
    """An agent on a clock of its own, whose one served call waits from some moment on."""

    def __init__(self, since: float) -> None:
        self.now, self.since = 0.0, since
        self.info = WorkerInfo("w0", 0, 1)
        self.call = ServedCall(self.info, 1, CallRecord("rpc.call"), math.inf, 0)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.followed_at: list[float] = []
        self._serving = self

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0

    def register_handler(self, *_: object) -> None: ...

    def submit(self, func: Callable[[], None]) -> None:
        func()

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now + delay, callback))

    def post(self, *_: object) -> None:
        self.followed_at.append(self.now)

    def calls(self) -> list[ServedCall]:
        return [self.call] if self.now >= self.since else []

    def oldest(self) -> ServedCall | None:
        return next(iter(self.calls()), None)

    def ways(self, *_: object, **__: object) -> list[Way]:
        return [Way((1,), ServedId(1, 1, 2), self.info, (), "waits")]


@pytest.mark.parametrize("since", [0.0, 0.001, 0.1, 0.199, 0.201])
def test_a_wait_is_followed_in_time(since: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a circle is told within two seconds, the messages on their way for 0.2 of them."""
    agent = OneCallThatWaits(since)
    monkeypatch.setattr(wait_probe, "time", agent)
    monkeypatch.setattr(wait_probe, "ways", agent.ways)
    WaitProbes(cast("Agent", agent)).begin()
    for _ in range(20):
        ((agent.now, look),) = agent.timers
        agent.timers.clear()
        look()
    first, second, *_ = agent.followed_at
    assert wait_probe.STALE_SECONDS <= first - since < 1.8
    assert second - first >= wait_probe.STALE_SECONDS  # ever more rarely


# -- circles that are told ------------------------------------------------------------------------


def reported(job: Job) -> list[int]:
    return [agent.attached(WaitProbes).reported for agent in job.agents]


def noted(name: str) -> WaitCycleError:
    error: WaitCycleError = waiting_code.take(f"{name}-noted")
    return error


@pytest.mark.parametrize(
    "how",
    [
        "waits",
        "waits_for_what_follows",
        "waits_inside_a_callback",
        "waits_for_all",
        "waits_for_a_collection",
        "gathers",
        "awaits",
        "awaits_a_thread",
        "gives",
    ],
)
def test_calls_that_wait_for_each_other_are_told(job: Job, how: str) -> None:
    """starts on w1 ─▶ passes_on on w2 ─▶ closes on w1 ─▶ the future that starts has."""
    name = f"{job.agents[0].info.incarnation}-{how}"
    with pytest.raises(WaitCycleError, match="wait for each other") as caught:
        job.on(0, rpc.rpc_sync, "w1", waiting_code.starts, (name, how))
    assert len(caught.value.chain) == 2  # without starts, which leads into the circle
    for error in (noted(name), noted(name)):
        assert len(error.chain) == 2
        text = " ".join(error.chain)
        assert f"{how} on 'w1', called by 'w2', waits for" in text
        assert "passes_on on 'w2', called by 'w1', waits for the call of" in text
    assert reported(job) == [0, 1, 1]


def test_a_value_that_waits_for_itself_is_told(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-self"
    for make in (waiting_code.make_from_itself, waiting_code.make_by_its_own_method):
        rref = job.on(0, rpc.remote, "w1", make, (name,))
        job.on(0, rpc.rpc_sync, "w1", waiting_code.put, (name, rref))
        with pytest.raises(WaitCycleError, match=make.__name__):
            rref.to_here()
        assert any(make.__name__ in text for text in noted(name).chain)


def test_a_coroutine_that_makes_a_value_from_itself_is_told(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-async"
    rref = job.on(0, rpc.remote, "w1", waiting_code.make_from_itself_async, (name,))
    job.on(0, rpc.rpc_sync, "w1", waiting_code.put, (name, rref))
    with pytest.raises(WaitCycleError, match="make_from_itself_async"):
        rref.to_here()
    assert noted(name).chain


def test_values_that_are_made_from_each_other_are_told(job: Job) -> None:
    """On w1 and w2, each by a fetch of the other one, which waits without a thread."""
    name = f"{job.agents[0].info.incarnation}-pair"
    make = waiting_code.make_from_itself
    first = job.on(0, rpc.remote, "w1", make, (f"{name}-1",))
    second = job.on(0, rpc.remote, "w2", make, (f"{name}-2",))
    job.on(0, rpc.rpc_sync, "w1", waiting_code.put, (f"{name}-1", second))
    job.on(0, rpc.rpc_sync, "w2", waiting_code.put, (f"{name}-2", first))
    for rref in (first, second):
        with pytest.raises(WaitCycleError, match="4 calls wait for each other"):
            rref.to_here()
    text = [line.split(", called by")[0] for line in noted(f"{name}-1").chain]
    assert sum(line.startswith("RRef.to_here on") for line in text) == 2
    assert sum("make_from_itself on" in line for line in text) == 2


@pytest.mark.parametrize("reader", ["reads_what_waits_for_it", "reads_asynchronously"])
@pytest.mark.parametrize(
    ("made", "first"),
    [
        ("yields_then_waits", 0),
        ("yields_then_waits", 40),  # more than the window holds
        ("ayields_then_waits", 3),
        ("waits_before_it_yields", 3),
    ],
)
def test_a_stream_that_waits_for_its_reader_is_told(
    job: Job, reader: str, made: str, first: int
) -> None:
    """has_it_read on w2 ─▶ reader on w1 ─▶ item of the stream of w2 ─▶ the future of reader."""
    name = secrets.token_hex()  # not all that is noted under it is taken
    with pytest.raises(WaitCycleError, match="2 calls wait for each other"):
        job.on(0, rpc.rpc_sync, "w2", waiting_code.has_it_read, (name, reader, made, first))
    number = 0 if made == "waits_before_it_yields" else first
    # A reader that leaves `with` closes the generator, which may hear of that first where it awaits.
    for error in (noted(name), *([] if made == "ayields_then_waits" else [noted(name)])):
        text = " ".join(error.chain)
        assert f"{reader} on 'w1', called by 'w2', waits for item {number} of the stream" in text
        assert f"{made} on 'w2', called by 'w1', waits for the call of" in text
    # The other one may have been given up by then.
    wait_until("somebody told", lambda: sum(reported(job)) >= 1)


def test_a_stream_that_calls_what_waits_for_its_reader_is_told(job: Job) -> None:
    """reader on w1 ─▶ item of the stream of w2 ─▶ waits on w0 ─▶ the future of reader."""
    name = secrets.token_hex()
    reader = waiting_code.reads_what_waits_for_it
    future = job.on(0, rpc.rpc_async, "w1", reader, (name, "yields_then_calls", 2))
    waiting_code.put(f"{name}-calls", future)
    with pytest.raises(WaitCycleError, match="3 calls wait for each other"):
        future.wait()
    # The others may hear first that the reader, which leaves `with`, wants no more.
    assert "waits for item 2 of the stream of" in " ".join(noted(name).chain)
    wait_until("the reader told", lambda: reported(job)[1] == 1)


# -- waits that are not told ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["waits_for_a_while", "awaits_for_a_while", "awaits_in_a_task_for_a_while"]
)
def test_a_circle_with_a_limit_inside_ends_by_itself(job: Job, how: str) -> None:
    name = f"{job.agents[0].info.incarnation}-{how}"
    assert job.on(0, rpc.rpc_sync, "w1", waiting_code.starts, (name, how)) == "gave up"
    assert reported(job) == [0, 0, 0]


def test_scopes_that_may_end_a_wait_are_seen() -> None:
    class Scope:
        def __init__(self, task: object) -> None:
            self.tasks = {task}

    Scope.__module__ = "anyio._backends._asyncio"

    async def main() -> None:
        run, task = enter_task_run(), asyncio.current_task()
        assert run is not None
        assert not _has_limit(run)
        async with asyncio.TaskGroup() as group:
            assert _has_limit(run)
            assert not await group.create_task(is_limited())  # it ends the wait of its parent
        del group
        assert not _has_limit(run)
        async with asyncio.timeout(None):
            await asyncio.sleep(0)
            assert not _has_limit(run)
        scope = Scope(task)
        assert _has_limit(run)
        del scope
        assert not _has_limit(run)

    async def is_limited() -> bool:
        run = enter_task_run()
        return run is None or _has_limit(run)

    asyncio.run(main())


def followed(job: Job) -> int:
    return sum(agent.attached(WaitProbes).followed for agent in job.agents)


def is_followed(job: Job, times: int) -> bool:
    return followed(job) >= times


def wait_until(what: str, true: Callable[[], bool]) -> None:
    wait_until_gone(what, lambda: [] if true() else [what], within=20)


def test_a_circle_that_another_failure_ends_is_not_told(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-fails"
    before = followed(job)
    future = job.on(0, rpc.rpc_async, "w1", waiting_code.starts, (name, "waits_for_one_that_fails"))
    wait_until("waits that nobody follows", lambda: followed(job) >= before + 2)
    remote_code.gates(name).set()
    assert future.wait() == "gave up"
    assert reported(job) == [0, 0, 0]


def test_a_long_chain_that_ends_is_not_told(make_job: MakeJob) -> None:
    """It passes every worker several times; its probes go nowhere but to the next call."""
    job = make_job(3, num_threads=2)
    name = f"{job.agents[0].info.incarnation}-chain"
    path = ["w1", "w2", "w0"] * 4
    before = followed(job)
    future = job.on(0, rpc.rpc_async, "w0", waiting_code.chain_of_waits, (path, name))
    wait_until("waits that nobody follows", lambda: followed(job) >= before + len(path))
    remote_code.gates(name).set()
    assert future.wait() == name
    assert reported(job) == [0, 0, 0]


def test_a_stream_whose_items_come_late_is_not_told(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-late-items"
    future = job.on(0, rpc.rpc_async, "w1", waiting_code.reads_slowly, (name,))
    for i in range(3):
        before = followed(job)
        wait_until("waits that nobody follows", partial(is_followed, job, before + 2))
        remote_code.gates(f"{name}-{i}").set()
    assert future.wait() == [0, 1, 2]
    assert reported(job) == [0, 0, 0]


def test_a_generator_that_rests_is_not_told(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-rests"
    before = followed(job)
    future = job.on(0, rpc.rpc_async, "w1", waiting_code.reads_half, (name,))
    wait_until("waits that nobody follows", lambda: followed(job) >= before + 2)
    remote_code.gates(name).set()
    assert future.wait() == 1
    assert reported(job) == [0, 0, 0]
