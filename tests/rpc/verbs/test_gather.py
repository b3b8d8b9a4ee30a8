"""gather: all or k of several calls, the rest cancelled; what they have in common is encoded once."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Queue
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    EncodeError,
    NotEnoughResultsError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc import seams
from telegrad.rpc.future.future import Future
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from telegrad.transport import LoopThread, on_own_loop
from telegrad.wire import encode, external
from telegrad.wire.values import array_types
from tests.rpc import remote_code
from tests.rpc.conftest import Job
from tests.rpc.rest import wait_until_idle

WORKERS = ("w0", "w1", "w2")


@pytest.fixture
def job(job: Job) -> Iterator[Job]:
    """Three workers, on which no call is pending or served when the test has ended."""
    yield job
    for agent in job.agents:
        wait_until_idle(agent)


def test_values_in_the_order_of_the_calls(job: Job) -> None:
    future = job.on(
        0,
        rpc.gather,
        [
            ("w2", remote_code.who),
            (0, remote_code.add, (1, 2)),
            ("w1", remote_code.describe, (1,), {"b": 2}),
            (job.agents[1].info, remote_code.async_who),
        ],
    )
    assert future.wait() == ["w2", 3, "(1,) [('b', 2)]", "w1"]
    assert job.on(0, rpc.gather, []).value() == []


@pytest.mark.asyncio
async def test_futures_among_the_calls_and_await(job: Job) -> None:
    plain: Future[str] = Future()

    def make() -> Future[list[Any]]:
        call = rpc.rpc_async("w1", remote_code.who)
        return rpc.gather([plain, call, ("w2", remote_code.who)])

    future = job.on(0, make)
    assert not future.done()
    plain.set_result("plain")
    assert await future == ["plain", "w1", "w2"]
    assert job.on(0, rpc.gather, [plain, plain]).value() == ["plain", "plain"]


def test_one_failure_fails_all_and_cancels_the_rest(job: Job) -> None:
    def make() -> Future[list[Any]]:
        return rpc.gather(
            [
                ("w1", remote_code.hold_async, ("rest",)),
                ("w1", remote_code.hold_then_fail, ("bad",)),
                plain,
            ]
        )

    plain: Future[int] = Future()
    future = job.on(0, make)
    assert remote_code.entered("rest")
    remote_code.release("bad")
    with pytest.raises(remote_code.CustomError, match="bad") as info:
        future.wait()
    assert any("hold_then_fail on 'w1'" in note for note in info.value.__notes__)
    assert remote_code.gates("rest-cancelled").wait(20)
    with pytest.raises(CallCancelledError):  # perhaps a moment later than the result is there
        plain.wait(20)


def test_k_of_n_gives_the_first_values_in_the_order_of_the_calls(job: Job) -> None:
    calls = [
        ("w1", remote_code.hold, ("late",)),
        ("w2", remote_code.hold_async, ("never",)),
        ("w2", remote_code.who),
    ]
    future = job.on(0, rpc.gather, calls, 2)
    assert remote_code.entered("never")
    remote_code.release("late")
    assert future.wait() == ["late", "w2"]
    assert remote_code.gates("never-cancelled").wait(20)
    assert job.on(0, rpc.gather, [("w1", remote_code.hold_async, ("x",))], 0).value() == []


def test_k_of_n_fails_when_too_few_are_left_and_names_each_failure(job: Job) -> None:
    calls = [
        ("w1", remote_code.fail, ("first",)),
        ("w2", remote_code.fail, ("second",)),
        ("w1", remote_code.hold_async, ("rest",)),
    ]
    future = job.on(0, rpc.gather, calls, 2)
    with pytest.raises(NotEnoughResultsError) as info:
        future.wait()
    text = str(info.value)
    assert text.startswith("2 of 3 failed in gather of 2 of 3, so fewer than 2 can succeed: ")
    assert "fail on 'w1': CustomError: first" in text
    assert "fail on 'w2': CustomError: second" in text


def test_cancelling_the_gather_cancels_all_of_its_calls(job: Job) -> None:
    future = job.on(0, rpc.gather, [(to, remote_code.hold_async, (to,)) for to in WORKERS])
    for to in WORKERS:
        assert remote_code.entered(to)
    assert future.cancel()
    for to in WORKERS:
        assert remote_code.gates(f"{to}-cancelled").wait(20)
    with pytest.raises(CallCancelledError, match="gather of 3"):
        future.wait()


def test_the_timeout_is_that_of_the_calls_and_of_futures_among_them(job: Job) -> None:
    call = ("w1", remote_code.hold_async, ("slow",))
    with pytest.raises(CallTimeoutError, match="hold_async on 'w1' took longer than"):
        job.on(0, rpc.gather, [call], timeout=0.05).wait()
    plain: Future[int] = Future()
    with pytest.raises(CallTimeoutError, match="gather of 1 was not done after"):
        job.on(0, rpc.gather, [plain], timeout=0.05).wait()
    with pytest.raises(CallCancelledError):  # perhaps a moment later than the result is there
        plain.wait(20)
    with pytest.raises(ValueError, match="above 0"):
        job.on(0, rpc.gather, [call], timeout=0)


def test_nothing_is_sent_when_one_of_the_calls_cannot_be(job: Job) -> None:
    sent = job.agents[0].statistics().calls_sent
    good = ("w1", remote_code.who)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (("w1",), TypeError, "item 1"),
        (["w1", remote_code.who], TypeError, "item 1"),
        (("w1", 3), TypeError, "func must be callable"),
        (("w1", remote_code.echo, 3), TypeError, "args must be a tuple or list"),
        (("w9", remote_code.who), UnknownWorkerError, "no worker 'w9'"),
        (("w1", remote_code.echo, (remote_code.Unsendable(),)), EncodeError, r"args\[0\]"),
        (("w1", lambda: 1), EncodeError, "lambda"),
    ]
    for call, error, text in wrong:
        with pytest.raises(error, match=text) as caught:
            job.on(0, rpc.gather, [good, call])
        assert "item 1 of the calls" in caught.value.__notes__[-1]
    with pytest.raises(TypeError, match=r"not one future; write \[future\]"):
        job.on(0, rpc.gather, rpc.Future())
    with pytest.raises(ValueError, match="k must be from 0"):
        job.on(0, rpc.gather, [good], 2)
    assert job.agents[0].statistics().calls_sent == sent


def test_a_call_that_cannot_be_sent_cancels_those_before_it(job: Job) -> None:
    def make() -> None:
        released = rpc.RRef([1])
        released.release()
        rpc.gather(
            [
                ("w1", remote_code.hold_async, ("before",)),
                ("w1", remote_code.echo, (released,)),
            ]
        )

    with pytest.raises(RuntimeError, match="was released"):
        job.on(0, make)


# -- multicast ---------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Mock, Mock]:
    """Notes what is encoded, and the arrays that are copied as they leave."""
    encodes, copies = Mock(wraps=encode), Mock(wraps=array_types.describe_array)
    monkeypatch.setattr("telegrad.rpc.call.codec.encode", encodes)
    monkeypatch.setattr(external, "describe_array", copies)
    return encodes, copies


def test_what_is_common_is_encoded_once_and_its_arrays_copied_once(
    job: Job, counted: tuple[Mock, Mock]
) -> None:
    encodes, copies = counted
    array = np.arange(100_000.0)
    weights = {"scale": np.float64(2.0), "other": array}
    calls = [(to, remote_code.total, (array, weights), {"bias": 1}) for to in WORKERS * 4]

    def cost(calls: list[Any]) -> tuple[int, int, list[Any]]:
        for each in counted:
            each.reset_mock()
        values = job.on(0, rpc.gather, calls).wait()
        encoded = [call.args[0] for call in encodes.call_args_list]
        calls_encoded = sum(isinstance(each, dict) and "func" in each for each in encoded)
        return calls_encoded, len(copies.call_args_list), values

    encoded, copied, values = cost(calls)
    assert (encoded, copied) == (1, 1)
    assert values == [2.0 * 2 * array.sum() + 1] * len(calls)
    # One that differs is encoded by itself.
    mixed = [*calls[:-1], ("w1", remote_code.total, (array, dict(weights)), {"bias": 1})]
    encoded, copied, _ = cost(mixed)
    assert (encoded, copied) == (2, 2)
    apart = [(to, remote_code.total, (array.copy(), weights), {"bias": 1}) for to in WORKERS * 4]
    encoded, copied, _ = cost(apart)
    assert (encoded, copied) == (len(apart), 2 * len(apart))


def test_receivers_of_one_multicast_share_no_memory(job: Job) -> None:
    array = np.ones(50_000)
    calls = [(to, remote_code.double_in_place, (array,)) for to in ("w0", "w1", "w1", "w2")]
    values = job.on(0, rpc.gather, calls).wait()
    assert all((value == 2.0).all() for value in values)
    assert (array == 1.0).all()
    for value in values:
        value += 1  # writable, and nobody else's
    assert all((value == 3.0).all() for value in values)


def test_what_is_sent_is_the_value_at_the_time_of_the_call(job: Job) -> None:
    array, items = np.zeros(50_000), [1]
    calls = [(to, remote_code.hold_and_echo, ("later", array, items)) for to in WORKERS]
    future = job.on(0, rpc.gather, calls)
    array += 1
    items.append(2)
    remote_code.release("later")
    for value, copy in future.wait():
        assert not value.any()
        assert copy == [1]


def test_each_destination_of_a_multicast_gets_a_fork_of_its_own(job: Job) -> None:
    def run() -> list[Any]:
        shared = rpc.RRef([1, 2])
        calls = [(to, remote_code.fetch_sum, (shared,)) for to in WORKERS * 2]
        return rpc.gather(calls).wait()

    assert job.on(0, run) == [3] * 6
    wait_until_gone(
        "RRef",
        lambda: [
            agent.info.name
            for agent in job.agents
            if agent.statistics().owned_rrefs or agent.statistics().user_rrefs
        ],
        within=20.0,
    )


def test_a_lost_worker_costs_its_own_answer_and_no_more() -> None:
    remote_code.gates.begin()
    kept: list[Future[list[Any]]] = []

    def begin() -> None:
        calls = [(to, remote_code.hold, (f"{to}",)) for to in range(1, 4)]
        kept.extend([rpc.gather(calls, 2), rpc.gather(calls)])

    def begin_again() -> None:
        kept.append(rpc.gather([(to, remote_code.who) for to in range(1, 4)], 3))

    with Cluster(4) as cluster:
        cluster.call(0, begin)
        for to in range(1, 4):
            assert remote_code.entered(f"{to}")
        cluster.kill(2)
        with pytest.raises(WorkerLostError):
            kept[1].wait()
        assert not kept[0].done()
        remote_code.gates.open_all()
        assert kept[0].wait() == ["1", "3"]
        cluster.call(0, begin_again)
        with pytest.raises(NotEnoughResultsError, match="WorkerLostError"):
            kept[2].wait()


def test_the_result_is_there_before_the_rest_is_cancelled(job: Job) -> None:
    first: Future[int] = Future()
    rest: Future[int] = Future()
    found: list[bool] = []
    result = job.on(0, rpc.gather, [first, rest], 1)
    rest.add_done_callback(lambda _: found.append(result.done()))
    first.set_result(1)
    assert found == [True]
    assert result.wait() == [1]


def test_callbacks_of_a_plain_future_never_run_on_a_loop(job: Job) -> None:
    """Here the loop cancels it, as its time is over."""
    plain: Future[object] = Future()
    found: Queue[bool] = Queue()
    child = plain.then(lambda _: found.put(on_own_loop()))
    plain.add_done_callback(lambda _: found.put(on_own_loop()))
    with pytest.raises(CallTimeoutError):
        job.on(0, rpc.gather, [plain], timeout=0.01).wait()
    assert [found.get(timeout=20) for _ in range(2)] == [False, False]
    child.wait(20)


def test_nor_where_a_loop_completes_one_that_nobody_raced(job: Job) -> None:
    plain: Future[object] = Future()
    found: Queue[bool] = Queue()
    plain.add_done_callback(lambda _: found.put(on_own_loop()))
    loop = LoopThread("test-loop").acquire()

    async def complete() -> None:
        with seams.use_agent(job.agents[0]):
            plain.set_result(1)

    try:
        loop.run(complete())
        assert not found.get(timeout=20)
    finally:
        loop.release()
