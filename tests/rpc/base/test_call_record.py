"""Each call begins once and ends once for an observer, at its caller and at its callee."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from telegrad import rpc
from telegrad.errors import CallRefusedError, EncodeError, TelegradError, WorkerLostError
from telegrad.rpc.seams import CALL, CallFacts, CallPhase, Outcome, current_agent
from telegrad.testing import Cluster
from tests.repeated import on_examples
from tests.rpc import remote_code as code
from tests.rpc.base.interceptors import Undone

Ends = list[tuple[str, Outcome | None]]


@pytest.fixture(autouse=True)
def gates() -> Iterator[None]:
    code.gates.begin()
    yield
    code.gates.open_all()


class Log:
    """What an observer saw: the facts of each call, when it began and as it ended."""

    def __init__(self) -> None:
        self.begun: list[CallFacts] = []
        self.ended: list[CallFacts] = []

    def on_begin(self, facts: CallFacts) -> None:
        assert facts.ended is None
        assert facts.phase is (CallPhase.QUEUED if facts.served else CallPhase.WAITING)
        self.begun.append(facts)

    def on_end(self, facts: CallFacts) -> None:
        assert facts.phase is CallPhase.OVER
        self.ended.append(facts)

    def ends(self, *, served: bool) -> Ends:
        """The functions and outcomes of the calls that ended, in the order of their begin."""
        return [(each.function, each.outcome) for each in self.begun if each.served is served]


class Breaks:
    """An observer with a defect."""

    def on_begin(self, facts: CallFacts) -> None:
        raise ValueError("on_begin is broken")

    def on_end(self, facts: CallFacts) -> None:
        raise ValueError("on_end is broken")


def watch(*more: Any) -> Log:
    """Adds an observer to the agent of the calling code."""
    log = Log()
    for each in (*more, log):
        current_agent().observe(each)
    return log


def fails(func: Callable[..., Any], *args: Any, **how: Any) -> None:
    with contextlib.suppress(code.CustomError, TelegradError):
        rpc.rpc_sync(1, func, args, **how)


def cancelled() -> None:
    future = rpc.rpc_async(1, code.hold_async, ("cancelled",))
    assert code.gates("cancelled-entered").wait(10.0)  # or the end of the job may overtake it
    future.cancel()


def stream() -> None:
    with contextlib.suppress(code.CustomError):
        list(rpc.stream(1, code.one_then_fail, ("enough",)))


def reference() -> None:
    rref = rpc.remote(1, list, ([1, 2],))
    assert rref.rpc_sync().index(2) == 1
    assert rref.to_here() == [1, 2]


ACTIONS: dict[str, Callable[[], object]] = {
    "value": lambda: rpc.rpc_sync(1, code.who),
    "array": lambda: rpc.rpc_sync(1, code.echo, (np.ones(1000),)),
    "coroutine": lambda: rpc.rpc_sync(1, code.async_who),
    "future": lambda: rpc.rpc_sync(1, code.add_later, ("worker0", 1, 2)),
    "to itself": lambda: rpc.rpc_sync(0, code.who),
    "nested": lambda: rpc.rpc_sync(1, code.chain, (["worker0", "worker1"],)),
    "error": lambda: fails(code.fail, "no"),
    "unsendable": lambda: fails(code.give_unsendable),
    "refused": lambda: fails(os.system, "true"),
    "late": lambda: fails(code.hold_async, "late", timeout=0.02),
    "cancelled": cancelled,
    "stream": stream,
    "reference": reference,
}


@on_examples(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=8), st.booleans(), few=8, many=60)
def test_each_call_begins_and_ends_exactly_once(names: list[str], dies: bool) -> None:
    with Cluster(2) as cluster:
        logs = cluster.run(watch)
        for name in names:
            cluster.call(0, ACTIONS[name])
        if dies:
            waits = cluster.call(0, rpc.rpc_async, 1, code.hold_async, ("lost",))
            cluster.kill(1)
            with pytest.raises(TelegradError):
                waits.wait()
        sent = cluster.call(0, rpc.statistics).calls_sent
    assert len([each for each in logs[0].begun if not each.served]) == sent
    for log in logs[:1] if dies else logs:
        assert len(log.begun) == len({id(each) for each in log.begun})
        assert sorted(map(id, log.begun)) == sorted(map(id, log.ended))
        for each in log.begun:
            assert each.ended is not None
            assert each.began <= each.ended <= time.monotonic()
            assert each.request_bytes > 0
    if dies:
        assert logs[0].ends(served=False)[-1] == ("tests.rpc.remote_code:hold_async", Outcome.LOST)
    else:
        made = {each.number for each in logs[0].begun if not each.served and each.peer.rank == 1}
        assert {each.number for each in logs[1].begun if each.served} == made


@pytest.mark.parametrize(
    ("name", "there", "outcomes"),
    [
        ("value", "tests.rpc.remote_code:who", (Outcome.VALUE, Outcome.VALUE)),
        ("error", "tests.rpc.remote_code:fail", (Outcome.ERROR, Outcome.ERROR)),
        ("unsendable", "tests.rpc.remote_code:give_unsendable", (Outcome.ERROR, Outcome.ERROR)),
        ("refused", f"{os.name}:system", (Outcome.ERROR, Outcome.ERROR)),
        ("late", "tests.rpc.remote_code:hold_async", (Outcome.TIMEOUT, Outcome.TIMEOUT)),
        ("cancelled", "tests.rpc.remote_code:hold_async", (Outcome.CANCELLED, Outcome.CANCELLED)),
    ],
)
def test_both_ends_name_the_function_and_the_outcome(
    name: str, there: str, outcomes: tuple[Outcome, Outcome]
) -> None:
    with Cluster(2) as cluster:
        logs = cluster.run(watch)
        cluster.call(0, ACTIONS[name])
    assert logs[0].ends(served=False) == [(there, outcomes[0])]
    assert logs[1].ends(served=True) == [(there, outcomes[1])]


def test_the_end_of_a_call_through_a_reference_is_the_loss_of_its_owner() -> None:
    with Cluster(2) as cluster:
        log = cluster.call(0, watch)
        rref = cluster.call(0, rpc.remote, 1, code.hold, ("value",))
        value = cluster.call(0, rref.rpc_async)
        held = value.upper()
        cluster.kill(1)
        with pytest.raises(WorkerLostError):
            held.wait()
    assert {outcome for _, outcome in log.ends(served=False)} == {Outcome.LOST}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_message_with_too_much_beside_it_is_an_error_at_the_end_that_sends_it(rank: int) -> None:
    def fill() -> None:
        current_agent().codec.add(Undone(bulky=rank == 1))

    with Cluster(2) as cluster:
        logs = cluster.run(watch)
        cluster.call(rank, fill)
        with pytest.raises(EncodeError):
            cluster.call(0, rpc.rpc_sync, 1, code.who)
    assert logs[0].ends(served=False) == [("tests.rpc.remote_code:who", Outcome.ERROR)]
    assert [len(each.begun) == len(each.ended) for each in logs] == [True, True]


def test_the_words_of_a_caller_have_no_line_ends_and_a_bounded_length() -> None:
    def lie() -> None:
        payload = {"func": "m:f\n" + "x" * 9000, "args": [], "kwargs": {}}
        agent = current_agent()
        with pytest.raises(CallRefusedError):
            agent.calling.send(agent.members.find(1), CALL, payload, function="f").wait()

    with Cluster(2) as cluster:
        log = cluster.call(1, watch)
        cluster.call(0, lie)
    (facts,) = log.ended
    assert facts.function.startswith("m:f")
    assert facts.function.isprintable()
    assert len(facts.function) < 600


class Unreadable:
    pass


def refuse(state: object) -> Unreadable:
    raise ValueError(f"{state} is unreadable")


def test_a_call_whose_arguments_cannot_be_decoded_has_its_name() -> None:
    rpc.register_type(Unreadable, encode=lambda _: 1, decode=refuse)
    with Cluster(2) as cluster:
        logs = cluster.run(watch)
        cluster.call(0, fails, code.echo, Unreadable())
        cluster.call(0, rpc.rpc_sync, 1, code.who)
    for log, served in zip(logs, (False, True), strict=True):
        assert log.ends(served=served)[0] == ("tests.rpc.remote_code:echo", Outcome.ERROR)


def test_the_bytes_of_request_and_reply_are_the_same_at_both_ends() -> None:
    with Cluster(2) as cluster:
        logs = cluster.run(watch)
        cluster.call(0, ACTIONS["array"])
    (caller,), (callee,) = logs[0].ended, logs[1].ended
    assert (caller.request_bytes, caller.reply_bytes) == (callee.request_bytes, callee.reply_bytes)
    assert caller.request_bytes > caller.reply_bytes > 8000  # bytes of the array
    assert (caller.kind, caller.peer.name) == ("rpc.call", "worker1")
    assert (callee.kind, callee.peer.name) == ("rpc.call", "worker0")


def test_an_observer_that_fails_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), Cluster(2) as cluster:
        log = cluster.call(0, watch, Breaks())
        assert cluster.call(0, rpc.rpc_sync, 1, code.who) == "worker1"
    assert log.ends(served=False) == [("tests.rpc.remote_code:who", Outcome.VALUE)]
    assert [each for each in caplog.messages if "an observer failed" in each] == [
        "an observer failed at the begin of tests.rpc.remote_code:who",
        "an observer failed at the end of tests.rpc.remote_code:who",
    ]


def test_an_observer_does_not_see_the_end_of_a_call_that_began_before() -> None:
    with Cluster(2) as cluster:
        early = cluster.call(0, rpc.rpc_async, 1, code.hold, ("early",))
        log = cluster.call(0, watch)
        code.release("early")
        assert early.wait() == "early"
        cluster.call(0, lambda: fails(code.hold, "never", timeout=0.02))
        code.release("never")
    assert log.ends(served=False) == [("tests.rpc.remote_code:hold", Outcome.TIMEOUT)]
