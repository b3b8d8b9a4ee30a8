"""Calls that wait for each other are told, with the chain; no others are."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from telegrad import rpc
from telegrad.errors import NotEnoughResultsError, WaitCycleError
from telegrad.rpc import seams
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.deadlock import probe as wait_probe
from telegrad.rpc.deadlock.graph import WaitPath
from telegrad.rpc.deadlock.protocol import Branch, ServedId
from telegrad.rpc.seams import AgentCore, WaitProbes
from telegrad.testing.leaks import wait_until_gone
from telegrad.types import WorkerInfo
from tests.rpc import remote_code
from tests.rpc.conftest import Job
from tests.rpc.deadlock import waiting_code

PACE = 0.05  # of the real seconds


@pytest.fixture(autouse=True)
def quick_looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the agents of a job look, and follow waits, sooner; an own clock shows the real pace."""
    if "make_job" in request.fixturenames:
        for name in ("LOOK_SECONDS", "STALE_SECONDS"):
            monkeypatch.setattr(wait_probe, name, PACE * getattr(wait_probe, name))


ID: list[object] = [1, 2, 3, 0]
WORKER: list[object] = ["w", 0, 1]
TODO: list[object] = [[ID, WORKER]]
SINCE: list[object] = [0.0, 0]


GARBAGE: list[object] = [
    None,
    [],
    [TODO, [], SINCE, 1],
    [[], [[ID, [], [ID], WORKER, ""]], SINCE, 1],
    [[ID], [[ID, [], [ID], WORKER, ""]], SINCE, 1],
    [[[[1, 2, 3], WORKER]], [[ID, [], [ID], WORKER, ""]], SINCE, 1],
    [[[[1, 2, "3", 0], WORKER]], [[ID, [], [ID], WORKER, ""]], SINCE, 1],
    [[[ID, ["w", 0]]], [[ID, [], [ID], WORKER, ""]], SINCE, 1],
    [TODO, [[ID, [], [ID], WORKER, 5]], SINCE, 1],
    [TODO, [[ID, [True], [ID], WORKER, ""]], SINCE, 1],
    [TODO, [[ID, [], [], WORKER, ""]], SINCE, 1],
    [TODO, [[ID, [], [[1, 2, 3]], WORKER, ""]], SINCE, 1],
    [TODO, [[ID, [], [ID], ["w", 0], ""]], SINCE, 1],
    [TODO, [[ID, [], [ID], [5, 0, 1], ""]], SINCE, 1],
    [TODO, [[ID, [], [ID], WORKER, ""]], 0.0, 1],
    [TODO, [[ID, [], [ID], WORKER, ""]], [0.0], 1],
    [TODO, [[ID, [], [ID], WORKER, ""]], [1, 1], 1],
    [TODO, [[ID, [], [ID], WORKER, ""]], SINCE, 1.0],
    [TODO * 257, [[ID, [], [ID], WORKER, ""]], SINCE, 1],
]


def test_garbage_is_no_probe(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    first, second = job.agents[0], job.agents[1]
    before = second.attachments[WaitProbes].followed
    for body in GARBAGE:
        for kind in (wait_probe.PROBE, wait_probe.CHECK, wait_probe.BREAK):
            first.messages.post(second.info, kind, body)
    assert job.on(0, rpc.rpc_sync, "w1", remote_code.who) == "w1"  # it came after them
    assert second.attachments[WaitProbes].followed == before

    def told() -> int:
        return sum("is garbage" in each.getMessage() for each in caplog.records)

    wait_until("all of which a log tells", lambda: told() == 3 * len(GARBAGE))
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


LEVELS = 40


def down(levels: int) -> str:
    """Calls itself on the other of two workers, so many levels deep, and holds at the bottom."""
    if not levels:
        return remote_code.hold("nested")
    other = {"w0": "w1", "w1": "w0"}[rpc.get_worker_info().name]
    return str(rpc.rpc_sync(other, down, (levels - 1,)))


def test_a_chain_of_nested_calls_costs_few_messages_a_call(job: Job) -> None:
    """Also where they all began between two looks; each probe went on to the end of the chain."""
    probes = [job.agents[r].attachments[WaitProbes] for r in (0, 1)]
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", down, (LEVELS,))
        assert remote_code.entered("nested")
        wait_until("each is followed", lambda: sum(each.followed for each in probes) >= LEVELS)
        remote_code.release("nested")
        assert future.wait() == "nested"
    assert sum(each.followed for each in probes) < 6 * LEVELS  # and not LEVELS**2 / 2
    assert reported(job) == [0, 0, 0]


class OneCallThatWaits:
    """An agent on a clock of its own, whose one served call waits from some moment on."""

    def __init__(self, since: float) -> None:
        self.now, self.since = 0.0, since
        self.info = WorkerInfo("w0", 0, 1)
        self.call = ServedCall("w1", self.info, 1, CallRecord("rpc.call"), math.inf, 0)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.followed_at: list[float] = []
        self.serving = self.inbox = self.pool = self.deadlines = self.messages = self

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0

    def register(self, *_: object) -> None: ...

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

    def ways(self, *_: object, **__: object) -> list[WaitPath]:
        return [WaitPath((1,), (Branch(ServedId(1, 1, 2), self.info),), (), "waits")]


@pytest.mark.parametrize("since", [0.0, 0.001, 0.1, 0.199, 0.201])
def test_a_wait_is_followed_in_time(since: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a circle is told within two seconds, the messages on their way for 0.2 of them."""
    agent = OneCallThatWaits(since)
    monkeypatch.setattr(wait_probe, "time", agent)
    monkeypatch.setattr(wait_probe, "ways", agent.ways)
    WaitProbes(cast("AgentCore", agent)).begin()
    for _ in range(20):
        ((agent.now, look),) = agent.timers
        agent.timers.clear()
        look()
    first, second, *_ = agent.followed_at
    assert wait_probe.STALE_SECONDS <= first - since < 1.8
    assert second - since >= 2 * wait_probe.STALE_SECONDS  # ever more rarely


# -- circles that are told ------------------------------------------------------------------------


def reported(job: Job) -> list[int]:
    return [agent.attachments[WaitProbes].reported for agent in job.agents]


def noted(name: str) -> WaitCycleError:
    error: WaitCycleError = waiting_code.take(f"{name}-noted")
    return error


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "how",
    [
        "waits",
        "waits_inside_a_callback",
        "waits_for_all",
        "gathers",
        "awaits",
        "awaits_a_thread",
        "gives",
        "awaits_a_group",
        "waits_for_the_first_completed",
    ],
)
def test_calls_that_wait_for_each_other_are_told(job: Job, how: str) -> None:
    """starts on w1 ─▶ passes_on on w2 ─▶ closes on w1 ─▶ the future that starts has.

    The ways in which a task may wait are those of `test_graph`.
    """
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


def test_calls_that_wait_for_any_of_each_other_are_told(job: Job) -> None:
    """Whichever of them ended first would end the others, and sometimes does so before they are told."""
    name = secrets.token_hex()
    told = job.on(0, rpc.rpc_sync, "w1", waiting_code.begins_a_knot, (name,))
    errors = [*told, *(noted(name) for _ in range(4))]
    assert isinstance(errors[0], WaitCycleError) or isinstance(errors[1], WaitCycleError)
    for error in errors:
        if isinstance(error, NotEnoughResultsError):  # both calls that it waits for were told
            assert "4 calls wait for each other" in str(error)
            continue
        assert isinstance(error, WaitCycleError)
        text = " ".join(error.chain)
        assert len(error.chain) == 4
        assert text.count("asks_either on 'w0' and the call of") == 2
        for to in ("w0", "w2"):
            assert f"asks_either on {to!r}, called by 'w1', waits for" in text


def test_a_call_that_waits_for_the_first_of_itself_is_told(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-alone"
    with pytest.raises(WaitCycleError, match="waits for itself"):
        job.on(0, rpc.rpc_sync, "w1", waiting_code.starts_itself, (name,))
    assert len(noted(name).chain) == 1


def test_an_attribute_that_waits_for_its_reader_is_told(job: Job) -> None:
    name = f"{job.agents[0].info.incarnation}-attribute"
    rref = job.on(0, rpc.remote, "w1", waiting_code.Asks, (name,))
    assert job.on(0, lambda: rref.rpc_sync().name) == name
    with pytest.raises(WaitCycleError, match=r"Asks\.back"):
        job.on(0, rpc.rpc_sync, "w2", waiting_code.starts_to_read, (name, rref))
    assert len(noted(name).chain) == 3


@pytest.mark.parametrize(
    "make",
    [
        waiting_code.make_from_itself,
        waiting_code.make_by_its_own_method,
        waiting_code.make_from_itself_async,
    ],
)
def test_a_value_that_waits_for_itself_is_told(job: Job, make: Callable[[str], Any]) -> None:
    name = f"{job.agents[0].info.incarnation}-self"
    rref = job.on(0, rpc.remote, "w1", make, (name,))
    job.on(0, rpc.rpc_sync, "w1", waiting_code.put, (name, rref))
    with pytest.raises(WaitCycleError, match=make.__name__):
        rref.to_here()
    assert any(make.__name__ in text for text in noted(name).chain)


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


@pytest.mark.parametrize(
    ("reader", "made", "first"),
    [
        ("reads_asynchronously", "yields_then_waits", 0),
        ("reads_what_waits_for_it", "yields_then_waits", 40),  # more than the window holds
        ("reads_what_waits_for_it", "ayields_then_waits", 3),
        ("reads_asynchronously", "waits_before_it_yields", 3),
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


# -- waits that are not told ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        "waits_for_a_while",
        "has_a_limit_in_a_task",
    ],
)
def test_a_circle_with_a_limit_inside_ends_by_itself(job: Job, how: str) -> None:
    name = f"{job.agents[0].info.incarnation}-{how}"
    assert job.on(0, rpc.rpc_sync, "w1", waiting_code.starts, (name, how)) == "gave up"
    assert reported(job) == [0, 0, 0]


def followed(job: Job) -> int:
    return sum(agent.attachments[WaitProbes].followed for agent in job.agents)


def is_followed(job: Job, times: int) -> bool:
    return followed(job) >= times


def wait_until(what: str, true: Callable[[], bool]) -> None:
    wait_until_gone(what, lambda: [] if true() else [what], within=20)


@pytest.mark.parametrize(
    "how",
    [
        "waits_for_one_that_fails",
        "groups_with_one_that_fails",
    ],
)
def test_a_circle_that_another_alternative_ends_is_not_told(job: Job, how: str) -> None:
    name = f"{job.agents[0].info.incarnation}-{how}"
    future = job.on(0, rpc.rpc_async, "w1", waiting_code.starts, (name, how))
    assert remote_code.entered(f"{name}-late")
    before = followed(job)
    wait_until("waits that nobody follows", lambda: followed(job) >= before + 4)
    remote_code.release(f"{name}-late")
    assert future.wait() == "gave up"
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
